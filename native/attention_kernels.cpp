// Paged attention, compiled once an instruction path. attention.h says what is computed and in which order.
#include "attention.h"
#include "attention_lanes.h"
#include "attention_pieces.h"
#include "attention_products.h"
#include "attention_softmax.h"
#include "attention_tiles.h"
#include "attention_workspace.h"

#include <type_traits>

namespace octavo::OCTAVO_PATH {
namespace {

#if defined(OCTAVO_PATH_AVX512_BF16)

// The instruction takes both factors in bf16, so q (with the scale in it) and p are rounded. It reads subnormal numbers as
// zeros, so that nothing depends on whether rounding makes zeros of them (sixteen at a time it does).
OCTAVO_INLINE void load_query(const float* source, float scale, int head_dim, std::uint32_t* out) {
    int x = 0;
    for (; x + lane_count <= head_dim; x += lane_count) {
        const Lanes scaled = mul(load(source + x), broadcast(scale));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x / 2), (__m256i)_mm512_cvtneps_pbh(scaled.v));
    }
    for (; x < head_dim; x += 2)
        out[x / 2] = round_bf16(source[x] * scale) | std::uint32_t(round_bf16(source[x + 1] * scale)) << 16;
}
// Writes one tile of probabilities and adds them to the row's sum as they were rounded, so that weights sum to 1.
OCTAVO_INLINE Lanes put_probabilities(Lanes p, Lanes sum, std::uint32_t* out) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(p.v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), rounded);
    return add(sum, {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16))});
}

#endif

OCTAVO_INLINE void load_query(const float* source, float scale, int head_dim, float* out) {
    for (int x = 0; x < head_dim; ++x) out[x] = source[x] * scale;
}
OCTAVO_INLINE Lanes put_probabilities(Lanes p, Lanes sum, float* out) {
    store(out, p);
    return add(sum, p);
}

// One item: its rows are [kv head][query][head of the group]. P is Product<type>, or WidenedProduct for a type of bytes.
template <KvType type, class P, bool narrow>
class ItemRun {
    using Stored = typename Product<type>::Element;
    using Element = typename P::Element;
    using Operand = typename P::Operand;
    using Found = std::conditional_t<narrow, ChunkPieces<Narrow<Product<type>>>, ChunkTiles<Stored>>;

public:
    ItemRun(const AttentionArgs& args, const AttentionItem& item, char* scratch)
        : args_(args), item_(item), head_dim_(args.layout.head_dim), stride_(acc_stride(head_dim_)),
          group_(args.heads / args.layout.num_kv_heads), head_rows_(item.queries * group_),
          rows_(head_rows_ * (item.kv_head_end - item.kv_head)),
          source_{&args.layout, static_cast<const char*>(args.storage) + args.layout.block_offset(args.layer, 0),
                  args.block_table + item.table_row * args.table_stride, item.context} {
        const ScratchMap map(args.heads, head_dim_);
        float* state = reinterpret_cast<float*>(scratch + map.state);
        q_ = reinterpret_cast<Operand*>(scratch + map.q);
        total_ = {reinterpret_cast<float*>(scratch + map.total_acc), state, state + rows_};
        segment_ = {reinterpret_cast<float*>(scratch + map.segment_acc), state + 2 * rows_, state + 3 * rows_};
        scores_ = reinterpret_cast<float*>(scratch + map.scores);
        p_ = reinterpret_cast<Operand*>(scratch + map.scores);
        rescale_ = reinterpret_cast<float*>(scratch + map.rescale);
        added_ = rescale_ + (head_rows_ + 15) / 16 * 16;
        tiles_[0] = scratch + map.tiles;
        tiles_[1] = tiles_[0] + scratch_chunk_bytes(head_dim_);
        widened_ = reinterpret_cast<std::uint16_t*>(scratch + map.widened);
    }

    // All heads of a chunk before the next chunk: a block is read while its neighbourhood is open. The tiles of the next
    // turn, which may be the next segment's, are found one turn ahead, so that they can be fetched while this turn computes.
    void run(float* partials) {
        const std::int32_t heads = item_.kv_head_end - item_.kv_head, first_chunk = item_.segment * segment_chunks;
        const std::int32_t chunks = last_position() / chunk_tokens + 1, item_chunks = item_.segment_end * segment_chunks;
        const std::int32_t turns = heads * ((chunks < item_chunks ? chunks : item_chunks) - first_chunk);
        Found found[2];
        SoftmaxState state = total_;
        find(first_chunk, 0, tiles_[0], found[0]);
        if constexpr (P::narrow)
            fetch_keys(args_.layout, found[0]);
        else if constexpr (P::pooled)
            for (int tile = 0; tile < tiles_ahead && tile < found[0].count; ++tile) fetch(found[0].keys[tile], 64, 64);
        load_queries();
        for (std::int32_t turn = 0, chunk = first_chunk, head = 0; turn < turns; ++turn) {
            const std::int32_t segment = chunk / segment_chunks, next_head = head + 1 < heads ? head + 1 : 0;
            const std::int32_t next_chunk = next_head ? chunk : chunk + 1;
            const bool ends = !next_head && next_chunk % segment_chunks == 0;
            if (head == 0 && chunk % segment_chunks == 0) {
                state = segment_state(partials, segment);
                reset(state, rows_, stride_);
            }
            const bool last = turn + 1 == turns;
            if (!last) find(next_chunk, next_head, tiles_[(turn + 1) % 2], found[(turn + 1) % 2]);
            attend_chunk(chunk, head, found[turn % 2], found[(last ? turn : turn + 1) % 2], state);
            if ((ends || last) && item_.partial < 0 && segment > item_.segment) merge(segment);
            chunk = next_chunk;
            head = next_head;
        }
        if (item_.partial < 0) write();
    }

private:
    OCTAVO_INLINE std::int32_t position(int head_row) const { return item_.position + head_row / group_; }
    OCTAVO_INLINE std::int32_t last_position() const { return item_.position + item_.queries - 1; }
    OCTAVO_INLINE std::size_t head_column(int row) const {
        const int kv_head = item_.kv_head + row / head_rows_;
        return (std::size_t(kv_head) * group_ + row % group_) * head_dim_;
    }
    OCTAVO_INLINE std::size_t token(int row) const { return item_.token + row % head_rows_ / group_; }
    OCTAVO_INLINE const float* query(int row) const {
        return args_.query + token(row) * args_.query_stride + head_column(row);
    }

#if defined(OCTAVO_PATH_AVX2)
    void load_queries() {
        for (int first = 0; first < rows_; first += head_rows_)
            in_row_groups(head_rows_, [&]<int rows>(int row) {
                const float* sources[rows];
                for (int r = 0; r < rows; ++r) sources[r] = query(first + row + r);
                pack_queries<rows>(sources, args_.scale, head_dim_, q_ + std::size_t(first + row) * head_dim_);
            });
    }
#else
    void load_queries() {
        const int operands = head_dim_ / P::per_step * P::operands_per_step;
        for (int row = 0; row < rows_; ++row)
            load_query(query(row), args_.scale, head_dim_,
                       q_ + std::size_t(row) * operands);
    }
#endif

    // The first `bytes` of each `stride` of a tile's keys or values.
    void fetch(const Stored* tile, std::size_t stride, std::size_t bytes) const {
        const auto* from = reinterpret_cast<const char*>(tile);
        const std::size_t end = std::size_t(tile_tokens) * head_dim_ * sizeof(Stored);
        for (std::size_t begin = 0; begin < end; begin += stride)
            for (std::size_t at = begin; at < begin + bytes; at += 64) __builtin_prefetch(from + at, 0, fetched_to);
    }

    void find(std::int32_t chunk, std::int32_t head, char* scratch, Found& tiles) const {
        const std::int32_t visible = last_position() + 1 - chunk * chunk_tokens;
        const int count = visible < chunk_tokens ? (visible + tile_tokens - 1) / tile_tokens : chunk_tiles;
        if constexpr (narrow)
            find_pieces<type>(source_, chunk, count, item_.kv_head + head, tiles_[0], !std::is_same_v<Stored, Element>, tiles);
        else
            find_tiles<type>(source_, chunk, count, item_.kv_head + head, scratch, tiles);
    }

    // Where a segment's softmax goes: partial results of the item's segments follow one another.
    SoftmaxState segment_state(float* partials, std::int32_t segment) const {
        const std::int32_t earlier = segment - item_.segment;
        if (item_.partial < 0) return earlier ? segment_ : total_;
        return partial_state(partials + item_.partial + earlier * partial_floats(rows_, head_dim_), rows_, stride_);
    }

    void attend_chunk(std::int32_t chunk, std::int32_t head, const Found& found, const Found& next,
                      const SoftmaxState& state) {
        if constexpr (!std::is_same_v<Stored, Element>) {
            if constexpr (narrow) {
                gather(chunk, found, 0, found.count, true);
                gather(chunk, found, 0, found.count, false);
            }
            const ChunkTiles<Element> tiles = widened(found, next);
            attend_tiles(chunk, head, tiles, tiles, state);
        } else if constexpr (narrow) {
            attend_pieces(chunk, head, found, next, state);
        } else {
            attend_tiles(chunk, head, found, next, state);
        }
    }

    void gather(std::int32_t chunk, const Found& found, int begin, int end, bool keys) const {
        for (int tile = begin; tile < end; ++tile)
            if (keys) gather_keys<type>(args_.layout, found, tile);
            else gather_values<type>(args_.layout, found, tile, item_.context - chunk * chunk_tokens - tile * tile_tokens);
    }

    // As attend_tiles, of narrow blocks: a few tiles at a time, so that what is copied stays near.
    void attend_pieces(std::int32_t chunk, std::int32_t head, const Found& found, const Found& next,
                       const SoftmaxState& state) {
        const int first_row = head * head_rows_, steps = head_dim_ / P::per_step, count = found.count;
        const bool few_rows = head_rows_ <= 2 * row_group;
        const int range = few_rows ? narrow_tiles_ahead : chunk_tiles;
        const std::size_t keys_bytes = args_.layout.tile_keys_bytes();
        const char* ahead[chunk_tokens];
        find_ahead(found, 0, found, keys_bytes, ahead);
        for (int begin = 0; begin < count; begin += range) {
            const int end = begin + range < count ? begin + range : count;
            gather(chunk, found, begin, end, true);
            const ScoreTask<P> score{column_tokens ? found.columns + 2 * begin : found.keys + begin, found.values,
                                     found.key_scales + begin, end - begin, steps,
                                     q_ + std::size_t(first_row) * steps * P::operands_per_step,
                                     scores_ + begin * tile_tokens, {ahead + (begin << found.shift), found.shift},
                                     found.key_step};
            in_row_groups(head_rows_, [&]<int rows>(int row) { score_rows<P, rows>(score, row); });
        }
        softmax(chunk, found, state.maximum + first_row, state.sum + first_row);
        find_ahead(found, keys_bytes, next, 0, ahead);
        for (int begin = 0; begin < count; begin += range) {
            const int end = begin + range < count ? begin + range : count;
            gather(chunk, found, begin, end, false);
            const WeighTask<P> weigh{found.steps + begin * Found::tile_steps, found.values, end - begin, head_dim_,
                                     p_ + begin * (p_stride<P> / chunk_tiles), rescale_,
                                     state.acc + std::size_t(first_row) * stride_, stride_, few_rows,
                                     {ahead + (begin << found.shift), found.shift}};
            in_row_groups(head_rows_, [&]<int rows>(int row) { weigh_rows<P, rows>(weigh, row); });
            for (int row = 0; row < head_rows_; ++row) rescale_[row] = 1.0f;
        }
    }

    void attend_tiles(std::int32_t chunk, std::int32_t head, const ChunkTiles<Element>& tiles,
                      const ChunkTiles<Element>& next, const SoftmaxState& state) {
        const int first_row = head * head_rows_, steps = head_dim_ / P::per_step;
        const ScoreTask<P> score{tiles.keys, tiles.values, tiles.key_scales, tiles.count, steps,
                                 q_ + std::size_t(first_row) * steps * P::operands_per_step, scores_};
        in_row_groups(head_rows_, [&]<int rows>(int row) { score_rows<P, rows>(score, row); });
        softmax(chunk, tiles, state.maximum + first_row, state.sum + first_row);
        WeighTask<P> weigh{tiles.values, next.keys, tiles.count, head_dim_, p_, rescale_,
                           state.acc + std::size_t(first_row) * stride_, stride_};
        weigh.few_rows = head_rows_ <= 2 * row_group;
        in_row_groups(head_rows_, [&]<int rows>(int row) { weigh_rows<P, rows>(weigh, row); });
    }

    ChunkTiles<std::uint16_t> widened(const ChunkTiles<Stored>& tiles, const ChunkTiles<Stored>& next) const {
        const std::size_t count = std::size_t(tile_tokens) * head_dim_;
        ChunkTiles<std::uint16_t> out{};
        out.count = tiles.count;
        for (int i = 0; i < tiles.count; ++i) {
            std::uint16_t* keys = widened_ + 2 * i * count;
            widen_tile<type>(tiles.keys[i], next.keys[i], count, keys);
            widen_tile<type>(tiles.values[i], next.values[i], count, keys + count);
            out.keys[i] = keys;
            out.values[i] = keys + count;
            out.key_scales[i] = tiles.key_scales[i];
            out.value_scales[i] = tiles.value_scales[i];
        }
        return out;
    }

    // From scores to probabilities; updates maximum and sum, and leaves in rescale_ what acc is to be multiplied with.
    void softmax(std::int32_t chunk, const ChunkTiles<Element>& tiles, float* maximum, float* sum) {
        const auto visible = [&](int row) { return position(row) + 1 - chunk * chunk_tokens; };
        // Apart from what follows: the rows' maxima, none of which waits for another, are then found side by side.
        for (int row = 0; row < head_rows_; ++row) {
            const float old = maximum[row];
            if (visible(row) > 0) maximum[row] = row_maximum(scores_ + row * chunk_tokens, visible(row), tiles.count, old);
            rescale_[row] = visible(row) > 0 ? old - maximum[row] : 0.0f;
        }
        for (int row = 0; row < head_rows_; ++row) {
            // Memory would idle: of the values, what is weighed first.
            if constexpr (P::pooled && !P::narrow && tiles_ahead < chunk_tiles) {
                const std::size_t step_bytes = std::size_t(head_dim_) * P::per_step * sizeof(Stored);
                if (row + tiles_ahead < tiles.count) fetch(tiles.values[row + tiles_ahead], step_bytes, 128);
            }
            added_[row] = row_probabilities(scores_ + row * chunk_tokens, visible(row), tiles, maximum[row],
                                            p_ + row * p_stride<P>);
        }
        for (int row = 0; row < head_rows_; row += lane_count) store(rescale_ + row, exp(load(rescale_ + row)));
        for (int row = 0; row < head_rows_; ++row) sum[row] = sum[row] * rescale_[row] + added_[row];
    }

    // Tiles of which a row sees every token.
    OCTAVO_INLINE static int whole_tiles(std::int32_t visible, int tiles) {
        return visible <= 0 ? 0 : visible >= tiles * tile_tokens ? tiles : visible / tile_tokens;
    }

    OCTAVO_INLINE static float row_maximum(const float* scores, std::int32_t visible, int tiles, float old) {
        const int whole = whole_tiles(visible, tiles);
        Lanes top = broadcast(old);
        for (int tile = 0; tile < whole; ++tile) top = max(load(scores + tile * tile_tokens), top);
        if (whole == tiles) return reduce_max(top);
        const Lanes last = load(scores + whole * tile_tokens);
        return reduce_max(max(first(visible - whole * tile_tokens, last, top), top));
    }

    // Of a token that is not seen the probability is 0; so is its product with a scale that may be anything.
    OCTAVO_INLINE static float row_probabilities(const float* scores, std::int32_t visible,
                                                 const ChunkTiles<Element>& tiles, float maximum, Operand* out) {
        constexpr int tile_operands = tile_tokens / P::per_step * P::operands_per_step;
        const int whole = whole_tiles(visible, tiles.count);
        const Lanes shift = broadcast(-maximum), zero = broadcast(0.0f);
        Lanes sum = zero;
        const auto put = [&](int tile, auto&& seen) {
            const Lanes p = exp(add(load(scores + tile * tile_tokens), shift));
            Operand* to = out + tile * tile_operands;
            if constexpr (P::scaled) {
                put_probabilities(seen(mul(p, load(tiles.value_scales[tile]))), zero, to);
                sum = add(sum, seen(p));
            } else {
                sum = put_probabilities(seen(p), sum, to);
            }
        };
        for (int tile = 0; tile < whole; ++tile) put(tile, [](Lanes x) { return x; });
        for (int tile = whole; tile < tiles.count; ++tile)
            put(tile, [&](Lanes x) { return first(visible - tile * tile_tokens, x, zero); });
        return reduce_add(sum);
    }

    // A row whose position comes before the segment has no part in it.
    void merge(std::int32_t segment) {
        const std::int32_t before = segment * segment_tokens - item_.position;
        for (int first = 0; first < rows_; first += head_rows_)
            merge_rows(total_, segment_, first + (before > 0 ? before * group_ : 0), first + head_rows_, stride_);
    }

    void write() {
        for (int row = 0; row < rows_; ++row)
            write_row(total_, row, stride_, head_dim_, args_.out + token(row) * args_.out_stride + head_column(row));
    }

    const AttentionArgs& args_;
    const AttentionItem& item_;
    const int head_dim_, stride_, group_, head_rows_, rows_;
    Operand* q_;
    SoftmaxState total_, segment_;
    float* scores_;
    Operand* p_;
    float* rescale_;   // [head_rows], in whole vectors
    float* added_;     // [head_rows]
    TileSource source_;
    char* tiles_[2];   // scratch of two turns
    std::uint16_t* widened_;
};

// Calls body.template operator()<type>() for the layout's type.
template <class Body>
OCTAVO_INLINE void with_type(KvType type, Body&& body) {
    switch (type) {
        case KvType::f32: return body.template operator()<KvType::f32>();
        case KvType::bf16: return body.template operator()<KvType::bf16>();
        case KvType::fp8: return body.template operator()<KvType::fp8>();
        case KvType::int8: return body.template operator()<KvType::int8>();
    }
}

void run_item(const AttentionArgs& args, const AttentionItem& item, float* partials, void* scratch) {
    const int rows = item.queries * (args.heads / args.layout.num_kv_heads);
    with_type(args.layout.type, [&]<KvType type>() {
        char* own = static_cast<char*>(scratch);
        // Two groups of rows read a tile quicker than it is written and read again (decode of 8 heads a kv head: 1.6x).
        const bool narrow = args.layout.block_size < tile_tokens;
        if constexpr (Product<type>::scaled)
            if (rows > 2 * row_group)
                return narrow ? ItemRun<type, WidenedProduct, true>(args, item, own).run(partials)
                              : ItemRun<type, WidenedProduct, false>(args, item, own).run(partials);
        if (narrow) return ItemRun<type, Narrow<Product<type>>, true>(args, item, own).run(partials);
        ItemRun<type, Product<type>, false>(args, item, own).run(partials);
    });
}

void store_kv(const StoreArgs& args, std::int64_t token_begin, std::int64_t token_end) {
    with_type(args.layout.type, [&]<KvType type>() {
        SlotPlace<type> next(args, token_begin);
        next.fetch(args.layout);
        for (std::int64_t token = token_begin; token < token_end; ++token) {
            const SlotPlace<type> place = next;
            if (token + 1 < token_end) {
                next = SlotPlace<type>(args, token + 1);
                next.fetch(args.layout);
            }
            store_token<type>(args, token, place);
        }
    });
}

}  // namespace

const AttentionKernels attention_kernels = {store_kv, run_item, combine, segment_tokens};

}  // namespace octavo::OCTAVO_PATH
