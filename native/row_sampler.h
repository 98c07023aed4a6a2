// Draws the next tokens of a step's rows, one row a thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime.h"

namespace octavo {

struct SamplingSettings {
    float temperature;  // 0: the highest logit, of equal ones the lowest token id
    std::int32_t top_k;  // 0: all
    double top_p;
    double min_p;
    double uniform;  // in [0, 1)
};

struct SampledToken {
    std::int32_t token;  // 0 where the highest logit is NaN, or is infinite and the temperature is not 0
    float highest;
};

// What stays of a row, and its working memory.
class TokenChooser {
public:
    explicit TokenChooser(const SamplingKernels& kernels) : kernels_(kernels) {}

    SampledToken choose(const float* logits, std::int64_t vocabulary, const SamplingSettings& settings);

    // Ids that min_p, then top_k, then top_p leave, rising. The highest logit is finite.
    const std::vector<std::int32_t>& candidates(const float* logits, std::int64_t vocabulary,
                                                const SamplingSettings& settings);

private:
    float find_highest(const float* logits);
    std::int32_t first_equal(const float* logits, float value) const;
    void filter(const float* logits, float highest, const SamplingSettings& settings);
    void collect(float at_least);
    void keep_highest(std::int64_t count, float border);
    void keep_top_k(std::int64_t count);
    void keep_nucleus(double top_p);
    void sum_steps(float range);
    void keep_within_step(float range, int step, double running, std::int64_t count, double wanted);
    std::int32_t draw(double uniform);
    void exponentials_of_kept();

    static constexpr int kSteps = 384;
    static int step_of(float value, float range) {
        return std::min(static_cast<int>(-value * (kSteps / range)), kSteps - 1);
    }

    // Calls body(value, weight) for the kept tokens above -range, in order of id.
    template <class Body>
    void for_each_above(float range, Body&& body) const {
        const std::vector<float>& values = all_ ? scaled_ : values_;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (all_ && i % kSamplingBlock == 0 && blocks_[i / kSamplingBlock] <= -range)
                i += kSamplingBlock - 1;
            else if (values[i] > -range)
                body(values[i], weights_[i]);
        }
    }

    const SamplingKernels& kernels_;
    std::int64_t vocabulary_ = 0;
    std::vector<float> blocks_;   // highest of each block of logits, then scaled
    std::vector<float> scaled_;   // the whole row
    std::vector<float> weights_;  // of all tokens or of the kept ones
    bool all_ = true;             // nothing was left out; else:
    std::vector<std::int32_t> ids_;
    std::vector<float> values_;
    std::vector<float> sorted_;
    double step_sums_[kSteps] = {};
    std::int64_t step_counts_[kSteps] = {};
};

class RowSampler {
public:
    explicit RowSampler(std::shared_ptr<Runtime> runtime);

    void choose(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t vocabulary,
                const SamplingSettings* settings, SampledToken* out);
    // For tests.
    std::vector<std::int32_t> candidates(const float* logits, std::int64_t vocabulary, const SamplingSettings& settings);

private:
    std::shared_ptr<Runtime> runtime_;
    std::vector<TokenChooser> choosers_;  // one a thread
};

}  // namespace octavo
