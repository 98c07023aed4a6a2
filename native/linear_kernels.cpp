// The linear kernels of one path for plain weights (compiled once per path, see path.h).
#include "linear_driver.h"

#if defined(OCTAVO_PATH_AVX512_AMX)
#include "linear_tiles_amx.h"
#elif defined(OCTAVO_PATH_AVX512_BF16)
#include "linear_tiles_avx512.h"
#elif defined(OCTAVO_PATH_AVX2)
#include "linear_tiles_avx2.h"
#else
#include "linear_tiles_portable.h"
#endif

namespace octavo::OCTAVO_PATH {
namespace {

// The sizes that all plain formats of a path share, and how their tiles are found.
template <class Tiles>
struct Plain : Tiles {
    static constexpr std::int64_t x_group_bytes = 64, weight_panel_bytes = 0;
    static constexpr std::int64_t weight_group_bytes = Tiles::group_bytes;
    static constexpr std::int64_t lone_rows = kLoneRows, max_rows = kMaxRows;
    static constexpr std::int64_t few_rows = kFewRows, few_rows_panels = kFewRowsPanels;
#if defined(OCTAVO_PATH_AVX2)
    static constexpr std::int64_t pass_bytes = kPassBytes;
#endif

    static TileFunction tile(int rows, bool wide) { return wide ? kWideTiles<Tiles>[rows] : kTiles<Tiles>[rows]; }

    static void pack(const LinearArgs& args, std::int64_t begin, std::int64_t rows, std::int64_t groups, char* out) {
        for (std::int64_t r = 0; r < rows; ++r) {
            const float* x = args.x + (begin + r) * args.x_stride;
            for (std::int64_t g = 0; g < groups; ++g)
                Tiles::pack_group(x + g * Tiles::group, args.in_features - g * Tiles::group, out + (g * rows + r) * 64);
        }
    }
};

#if defined(OCTAVO_PATH_AVX512_AMX)
// Of the sizes, those that depend on the registers are others.
struct Amx : Plain<TileBF16> {
    static constexpr std::int64_t lone_rows = TileBF16::max_rows, max_rows = TileBF16::max_rows,
                                  few_rows = TileBF16::few_rows, few_rows_panels = TileBF16::few_rows_panels;
    static TileFunction tile(int rows, bool wide) { return TileBF16::tile(rows, wide); }
};
#endif

}  // namespace

#if defined(OCTAVO_PATH_AVX512_AMX)
extern const LinearKernels linear_bf16_kernels = kernels_of<Amx>(2, 0);
#else
extern const LinearKernels linear_f32_kernels = kernels_of<Plain<F32>>(1, 0);
extern const LinearKernels linear_bf16_kernels = kernels_of<Plain<BF16>>(2, 0);
#if defined(OCTAVO_PATH_AVX512_BF16)
extern const LinearKernels linear_widened_bf16_kernels = kernels_of<Plain<WidenedBF16>>(2, 0);
#endif
#endif

}  // namespace octavo::OCTAVO_PATH
