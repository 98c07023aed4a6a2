#include "row_sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace octavo {
namespace {

constexpr std::int64_t kStretch = 256;  // tokens whose weights are summed as one when a token is drawn

// What a running sum must exceed: ``target``, but never a place that adds nothing. Rounding may have carried ``target`` up
// to the last sum or beyond it.
double reachable(double target, double last) { return std::min(target, std::nextafter(last, 0.0)); }

}  // namespace

float TokenChooser::find_highest(const float* logits) {
    blocks_.resize((vocabulary_ + kSamplingBlock - 1) / kSamplingBlock);
    kernels_.block_highest(logits, vocabulary_, blocks_.data());
    return kernels_.has_nan(logits, vocabulary_) ? NAN : *std::max_element(blocks_.begin(), blocks_.end());
}

std::int32_t TokenChooser::first_equal(const float* logits, float value) const {
    const auto block = std::find(blocks_.begin(), blocks_.end(), value) - blocks_.begin();
    std::int64_t token = block * kSamplingBlock;
    while (token < vocabulary_ && logits[token] != value) ++token;
    return static_cast<std::int32_t>(token < vocabulary_ ? token : 0);
}

SampledToken TokenChooser::choose(const float* logits, std::int64_t vocabulary, const SamplingSettings& settings) {
    vocabulary_ = vocabulary;
    const float highest = find_highest(logits);
    if (settings.temperature == 0.0f) return {std::isnan(highest) ? 0 : first_equal(logits, highest), highest};
    if (!std::isfinite(highest)) return {0, highest};
    filter(logits, highest, settings);
    return {draw(settings.uniform), highest};
}

const std::vector<std::int32_t>& TokenChooser::candidates(const float* logits, std::int64_t vocabulary,
                                                          const SamplingSettings& settings) {
    vocabulary_ = vocabulary;
    filter(logits, find_highest(logits), settings);
    if (all_) {
        ids_.resize(vocabulary);
        std::iota(ids_.begin(), ids_.end(), 0);
    }
    return ids_;
}

void TokenChooser::filter(const float* logits, float highest, const SamplingSettings& settings) {
    scaled_.resize(vocabulary_);
    kernels_.scale(logits, highest, settings.temperature, scaled_.data(), vocabulary_);
    // Rounding keeps order, so a block's highest, scaled, is the highest of its scaled values.
    kernels_.scale(blocks_.data(), highest, settings.temperature, blocks_.data(), static_cast<std::int64_t>(blocks_.size()));
    all_ = true;
    if (settings.min_p > 0) collect(static_cast<float>(std::log(settings.min_p)));
    const auto count = all_ ? vocabulary_ : static_cast<std::int64_t>(ids_.size());
    if (settings.top_k > 0 && settings.top_k < count) keep_top_k(settings.top_k);
    if (settings.top_p < 1) keep_nucleus(settings.top_p);
}

// Keeps the tokens of the whole row whose scaled logit is at least so high.
void TokenChooser::collect(float at_least) {
    all_ = false;
    ids_.clear();
    values_.clear();
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
        if (!(blocks_[block] >= at_least)) continue;
        const std::int64_t begin = static_cast<std::int64_t>(block) * kSamplingBlock;
        const std::int64_t end = std::min(begin + kSamplingBlock, vocabulary_);
        for (std::int64_t token = begin; token < end; ++token)
            if (scaled_[token] >= at_least) {
                ids_.push_back(static_cast<std::int32_t>(token));
                values_.push_back(scaled_[token]);
            }
    }
}

// Keeps the ``count`` highest, the lowest of which is ``border``; of those that equal it the lowest ids stay.
void TokenChooser::keep_highest(std::int64_t count, float border) {
    if (all_) collect(border);
    std::int64_t at_border = count - std::count_if(values_.begin(), values_.end(), [&](float v) { return v > border; });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
        if (values_[i] < border || (values_[i] == border && at_border-- <= 0)) continue;
        ids_[kept] = ids_[i];
        values_[kept++] = values_[i];
    }
    ids_.resize(kept);
    values_.resize(kept);
}

void TokenChooser::keep_top_k(std::int64_t count) {
    if (all_) {
        // The count-th highest block is a bound: at least so many tokens reach it, and few others.
        sorted_ = blocks_;
        if (count <= static_cast<std::int64_t>(sorted_.size())) {
            std::nth_element(sorted_.begin(), sorted_.begin() + count - 1, sorted_.end(), std::greater<>());
            collect(sorted_[count - 1]);
        } else {
            collect(-INFINITY);
        }
    }
    sorted_ = values_;
    std::nth_element(sorted_.begin(), sorted_.begin() + count - 1, sorted_.end(), std::greater<>());
    keep_highest(count, sorted_[count - 1]);
}

void TokenChooser::exponentials_of_kept() {
    const auto& values = all_ ? scaled_ : values_;
    weights_.resize(values.size());
    kernels_.exponentials(values.data(), weights_.data(), static_cast<std::int64_t>(values.size()));
}

// The fewest of the most likely tokens whose share reaches ``top_p``. Shares are summed in steps of the logit, the highest
// first; only the step in which they reach it is sorted. Tokens far less likely than the first are looked at only if the
// others do not hold enough, so the range is a guess about speed and never about the answer.
void TokenChooser::keep_nucleus(double top_p) {
    exponentials_of_kept();
    const double wanted = top_p * kernels_.sum(weights_.data(), static_cast<std::int64_t>(weights_.size()));
    for (const float range : {6.0f, 10.0f, 96.0f}) {
        sum_steps(range);
        double running = 0;
        std::int64_t count = 0;
        for (int step = 0; step < kSteps; ++step) {
            if (running + step_sums_[step] >= wanted) return keep_within_step(range, step, running, count, wanted);
            running += step_sums_[step];
            count += step_counts_[step];
        }
    }
    // The sums may differ in their last bits; where they do, all of them are the nucleus.
}

void TokenChooser::sum_steps(float range) {
    std::fill_n(step_sums_, kSteps, 0.0);
    std::fill_n(step_counts_, kSteps, 0);
    for_each_above(range, [&](float value, float weight) {
        const int step = step_of(value, range);
        step_sums_[step] += weight;
        ++step_counts_[step];
    });
}

// ``running`` and ``count`` are those of the steps before.
void TokenChooser::keep_within_step(float range, int step, double running, std::int64_t count, double wanted) {
    sorted_.clear();
    for_each_above(range, [&](float value, float) {
        if (step_of(value, range) == step) sorted_.push_back(value);
    });
    std::sort(sorted_.begin(), sorted_.end(), std::greater<>());
    weights_.resize(std::max(weights_.size(), sorted_.size()));
    kernels_.exponentials(sorted_.data(), weights_.data(), static_cast<std::int64_t>(sorted_.size()));
    std::size_t last = 0;
    while (last + 1 < sorted_.size() && (running += weights_[last]) < wanted) ++last;
    keep_highest(count + static_cast<std::int64_t>(last) + 1, sorted_[last]);
}

// The first of the kept tokens, in order of id, at which the running sum of weights exceeds uniform x their sum. The sum
// runs over the sums of stretches and then within one.
std::int32_t TokenChooser::draw(double uniform) {
    exponentials_of_kept();
    const auto count = static_cast<std::int64_t>(weights_.size());
    std::vector<double> running;
    double total = 0;
    for (std::int64_t begin = 0; begin < count; begin += kStretch)
        running.push_back(total += kernels_.sum(weights_.data() + begin, std::min(kStretch, count - begin)));
    const double target = uniform * total;
    const auto stretch =
        std::upper_bound(running.begin(), running.end(), reachable(target, total)) - running.begin();
    const std::int64_t begin = stretch * kStretch, end = std::min(begin + kStretch, count);
    const double before = stretch ? running[stretch - 1] : 0.0;
    std::vector<double> inner;
    double sum = 0;
    for (std::int64_t i = begin; i < end; ++i) inner.push_back(sum += weights_[i]);
    const auto place = begin + (std::upper_bound(inner.begin(), inner.end(), reachable(target - before, sum)) - inner.begin());
    return all_ ? static_cast<std::int32_t>(place) : ids_[place];
}

RowSampler::RowSampler(std::shared_ptr<Runtime> runtime)
    : runtime_(std::move(runtime)), choosers_(runtime_->threads(), TokenChooser(runtime_->path().sampling)) {}

void RowSampler::choose(const float* logits, std::int64_t rows, std::int64_t stride, std::int64_t vocabulary,
                        const SamplingSettings* settings, SampledToken* out) {
    const std::lock_guard lock(runtime_->mutex());
    runtime_->pool().parallel_for(rows, [&](std::int64_t row, int thread) {
        out[row] = choosers_[thread].choose(logits + row * stride, vocabulary, settings[row]);
    });
}

std::vector<std::int32_t> RowSampler::candidates(const float* logits, std::int64_t vocabulary,
                                                 const SamplingSettings& settings) {
    const std::lock_guard lock(runtime_->mutex());
    return choosers_[0].candidates(logits, vocabulary, settings);
}

}  // namespace octavo
