// The one file that knows Python. Arrays are checked here for type and dimensions, and never converted: a silent copy of
// an output would lose it, one of a table would cost its memory twice.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "machine_limits.h"
#include "encoded_matrix.h"
#include "program.h"
#include "row_sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pairs = nb::ndarray<const std::int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using BlockTable = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::device::cpu>;
using Matrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using ReadOnlyLogits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Memory = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<3>>;

ElementType element_type(const std::string& name) {
    if (name == "f32") return ElementType::f32;
    if (name == "bf16") return ElementType::bf16;
    throw nb::value_error(("dtype is '" + name + "'; it must be f32 or bf16").c_str());
}

KvType kv_type(const std::string& name) {
    if (name == "f32") return KvType::f32;
    if (name == "bf16") return KvType::bf16;
    if (name == "fp8") return KvType::fp8;
    if (name == "int8") return KvType::int8;
    throw nb::value_error(("dtype is '" + name + "'; it must be f32, bf16, fp8 or int8").c_str());
}

constexpr std::pair<const char*, WeightFormat> kFormats[] = {
    {"f32", WeightFormat::f32},   {"bf16", WeightFormat::bf16}, {"int8", WeightFormat::int8},
    {"q4_0", WeightFormat::q4_0}, {"q4_1", WeightFormat::q4_1}, {"q8_0", WeightFormat::q8_0},
};

const char* name_of(WeightFormat format) { return kFormats[static_cast<int>(format)].first; }

WeightFormat weight_format(const std::string& name) {
    for (const auto& [known, format] : kFormats)
        if (name == known) return format;
    throw nb::value_error(("format is '" + name + "'; it must be f32, bf16, int8, q4_0, q4_1 or q8_0").c_str());
}

Encoding encoding_of(const std::string& name) {
    for (int i = 0; i < kEncodings; ++i)
        if (name == kEncodingInfo[i].name) return static_cast<Encoding>(i);
    throw nb::value_error(("encoding '" + name + "' is not known").c_str());
}

ElementType type_of(const Matrix& matrix) {
    if (matrix.dtype() == nb::dtype<float>()) return ElementType::f32;
    if (matrix.dtype() == nb::dtype<std::uint16_t>()) return ElementType::bf16;
    throw nb::value_error("a matrix must be float32, or bf16 as uint16");
}

EncodedMatrix view(const Matrix& matrix) {
    const Encoding encoding = type_of(matrix) == ElementType::f32 ? Encoding::f32 : Encoding::bf16;
    const auto rows = static_cast<std::int64_t>(matrix.shape(0));
    return EncodedMatrix({{encoding, static_cast<const std::byte*>(matrix.data()), rows}},
                         static_cast<std::int64_t>(matrix.shape(1)));
}

void check_same(const char* what, std::size_t size, const char* other, std::size_t other_size) {
    if (size != other_size)
        throw nb::value_error((std::string(what) + " has " + std::to_string(size) + " entries and " + other + " " +
                               std::to_string(other_size))
                                  .c_str());
}

void bind_runtime(nb::module_& m) {
    m.def("available_paths", &available_paths, "variants"_a = false);
    nb::class_<Runtime>(m, "Runtime")
        .def(nb::init<const std::string&, int>(), "path"_a, "threads"_a)
        .def_prop_ro("path", [](const Runtime& self) { return self.path().name; })
        .def_prop_ro("threads", &Runtime::threads);
    m.def("probe_bandwidth", &probe_bandwidth, "runtime"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "probe_flops",
        [](Runtime& runtime, const std::string& dtype) {
            if (dtype == "int8") return probe_flops(runtime, Arithmetic::int8);
            if (dtype == "int4") return probe_flops(runtime, Arithmetic::int4);
            const bool bf16 = element_type(dtype) == ElementType::bf16;
            return probe_flops(runtime, bf16 ? Arithmetic::bf16 : Arithmetic::f32);
        },
        "runtime"_a, "dtype"_a, nb::call_guard<nb::gil_scoped_release>());
}

// What a decoder found damaged, as Python's NotFiniteError(row, column, value).
void bind_not_finite(nb::module_& m) {
    PyObject* type = PyErr_NewException("octavo._native.NotFiniteError", PyExc_ValueError, nullptr);
    m.attr("NotFiniteError") = nb::handle(type);
    nb::register_exception_translator(
        [](const std::exception_ptr& thrown, void* error_type) {
            try {
                std::rethrow_exception(thrown);
            } catch (const NotFinite& found) {
                const nb::tuple arguments = nb::make_tuple(found.row, found.column, found.value);
                PyErr_SetObject(static_cast<PyObject*>(error_type), arguments.ptr());
            }
        },
        type);
}

nb::object decoded(const EncodedMatrix& matrix, const std::string& dtype, int threads) {
    const ElementType type = element_type(dtype);
    const auto rows = static_cast<std::size_t>(matrix.rows()), columns = static_cast<std::size_t>(matrix.columns());
    const std::size_t bytes = rows * columns * (type == ElementType::f32 ? 4 : 2);
    auto* data = new std::byte[bytes];
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::byte*>(p); });
    {
        const nb::gil_scoped_release release;
        ThreadPool pool(threads);
        const auto best = std::find_if(all_paths().begin(), all_paths().end(), [](auto& path) { return path.supported(); });
        decode_matrix(best->decode, pool, matrix, type, data);
    }
    if (type == ElementType::f32)
        return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(data, {rows, columns}, owner));
    return nb::cast(nb::ndarray<nb::numpy, std::uint16_t, nb::ndim<2>>(data, {rows, columns}, owner));
}

// keep_alive<1, 2>: the matrix refers to the arrays' memory.
void bind_encoded_matrix(nb::module_& m) {
    nb::class_<EncodedMatrix>(m, "EncodedMatrix")
        .def(
            "__init__",
            [](EncodedMatrix* self, const std::vector<std::pair<std::string, Bytes>>& parts, std::int64_t columns) {
                std::vector<EncodedPart> encoded;
                for (const auto& [name, rows] : parts) {
                    const Encoding encoding = encoding_of(name);
                    const EncodingInfo& info = info_of(encoding);
                    check_same("a row", rows.shape(1), "the encoding",
                               static_cast<std::size_t>(columns / info.elements * info.bytes));
                    encoded.push_back({encoding, reinterpret_cast<const std::byte*>(rows.data()),
                                       static_cast<std::int64_t>(rows.shape(0))});
                }
                new (self) EncodedMatrix(std::move(encoded), columns);
            },
            "parts"_a, "columns"_a, nb::keep_alive<1, 2>())
        .def("decode", &decoded, "dtype"_a, "threads"_a = 1);
}

void bind_weight(nb::module_& m) {
    const auto create = [](Weight* self, Runtime& runtime, const EncodedMatrix& matrix, WeightFormat format,
                           const std::optional<Vector>& bias) {
        if (bias) check_same("bias", bias->size(), "the matrix's rows", static_cast<std::size_t>(matrix.rows()));
        const float* bias_data = bias ? bias->data() : nullptr;
        const nb::gil_scoped_release release;
        new (self) Weight(runtime, matrix, format, bias_data);
    };
    nb::class_<Weight>(m, "Weight")
        .def(
            "__init__",
            [create](Weight* self, Runtime& runtime, const EncodedMatrix& matrix, const std::string& format,
                     const std::optional<Vector>& bias) { create(self, runtime, matrix, weight_format(format), bias); },
            "runtime"_a, "matrix"_a, "format"_a, "bias"_a.noconvert() = nb::none())
        .def(
            "__init__",
            [create](Weight* self, Runtime& runtime, const Matrix& matrix, const std::optional<Vector>& bias) {
                const bool bf16 = type_of(matrix) == ElementType::bf16;
                create(self, runtime, view(matrix), bf16 ? WeightFormat::bf16 : WeightFormat::f32, bias);
            },
            "runtime"_a, "matrix"_a.noconvert(), "bias"_a.noconvert() = nb::none())
        .def_prop_ro("out_features", &Weight::out_features)
        .def_prop_ro("in_features", &Weight::in_features)
        .def_prop_ro("format", [](const Weight& self) { return name_of(self.format()); })
        .def_prop_ro("nbytes", &Weight::nbytes);
}

Result new_result(std::size_t rows, std::size_t columns) {
    auto* data = new float[rows * columns];
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return Result(data, {rows, columns}, owner);
}

void bind_kv_storage(nb::module_& m) {
    nb::class_<KvStorage>(m, "KVStorage")
        .def(
            "__init__",
            [](KvStorage* self, Runtime&, int num_blocks, int block_size, int num_layers, int num_kv_heads,
               int head_dim, const std::string& dtype) {
                new (self) KvStorage({num_blocks, block_size, num_layers, num_kv_heads, head_dim, kv_type(dtype)});
            },
            "runtime"_a, "num_blocks"_a, "block_size"_a, "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "dtype"_a)
        .def_prop_ro("nbytes", &KvStorage::nbytes)
        .def(
            "copy_blocks",
            [](KvStorage& self, const Pairs& pairs) {
                self.copy_blocks(pairs.data(), static_cast<std::int64_t>(pairs.shape(0)));
            },
            "pairs"_a.noconvert())
        .def_prop_ro(
            "memory",
            [](KvStorage& self) {
                const KvLayout& layout = self.layout();
                const auto layers = static_cast<std::size_t>(layout.num_layers), blocks = static_cast<std::size_t>(layout.num_blocks);
                return Memory(self.data(), {layers, blocks, layout.block_bytes()});
            },
            nb::rv_policy::reference_internal)
        .def("fill", &KvStorage::fill, "value"_a)
        .def(
            "read",
            [](const KvStorage& self, int layer, int block, int slot) {
                const KvLayout& layout = self.layout();
                Result keys = new_result(layout.num_kv_heads, layout.head_dim);
                Result values = new_result(layout.num_kv_heads, layout.head_dim);
                self.read(layer, block, slot, keys.data(), values.data());
                return std::pair(keys, values);
            },
            "layer"_a, "block"_a, "slot"_a);
}

void run(Program& self, const Indices& token_ids, const Indices& computed, const Indices& scheduled,
         const BlockTable& block_table, const Indices& rows, const Indices& logit_rows, const Logits& logits) {
    check_same("computed", computed.size(), "rows", rows.size());
    check_same("scheduled", scheduled.size(), "rows", rows.size());
    if (block_table.shape(1) > 1 && block_table.stride(1) != 1)
        throw nb::value_error("the block table's rows are not contiguous");
    if (logits.size() > 0 && logits.shape(1) > 1 && logits.stride(1) != 1)
        throw nb::type_error("the logits' rows are not contiguous");
    Step step{};
    step.token_ids = token_ids.data();
    step.tokens = static_cast<std::int64_t>(token_ids.size());
    step.computed = computed.data();
    step.scheduled = scheduled.data();
    step.rows = rows.data();
    step.num_rows = static_cast<std::int64_t>(rows.size());
    step.block_table = block_table.data();
    step.table_rows = static_cast<std::int64_t>(block_table.shape(0));
    step.table_columns = static_cast<std::int64_t>(block_table.shape(1));
    step.table_stride = block_table.stride(0);
    step.logit_rows = logit_rows.data();
    step.num_logit_rows = static_cast<std::int64_t>(logit_rows.size());
    step.logits = logits.data();
    step.logits_rows = static_cast<std::int64_t>(logits.shape(0));
    step.logits_columns = static_cast<std::int64_t>(logits.shape(1));
    step.logits_stride = logits.stride(0);
    const nb::gil_scoped_release release;
    self.run(step);
}

// keep_alive<1, n>: the program refers to argument n's memory.
void bind_program(nb::module_& m) {
    nb::class_<Program>(m, "Program")
        .def(nb::init<std::shared_ptr<Runtime>, std::shared_ptr<KvStorage>>(), "runtime"_a, "kv"_a)
        .def("register", &Program::add_register, "width"_a)
        .def(
            "embed",
            [](Program& self, int out, const EncodedMatrix& table, const std::string& dtype) {
                const ElementType type = element_type(dtype);
                const nb::gil_scoped_release release;
                self.embed(out, table, type);
            },
            "out"_a, "table"_a, "dtype"_a, nb::keep_alive<1, 3>())
        .def(
            "embed",
            [](Program& self, int out, const Matrix& table) { self.embed(out, view(table), type_of(table)); }, "out"_a,
            "table"_a.noconvert(), nb::keep_alive<1, 3>())
        .def(
            "rms_norm",
            [](Program& self, int out, int source, const Vector& weight, float eps, std::int64_t column,
               std::int64_t groups) {
                self.rms_norm(out, source, weight.data(), static_cast<std::int64_t>(weight.size()), eps, column, groups);
            },
            "out"_a, "source"_a, "weight"_a.noconvert(), "eps"_a, "column"_a = 0, "groups"_a = 1,
            nb::keep_alive<1, 4>())
        .def(
            "linear",
            [](Program& self, int out, int source, std::shared_ptr<Weight> weight) {
                self.linear(out, source, std::move(weight));
            },
            "out"_a, "source"_a, "weight"_a)
        .def(
            "rope",
            [](Program& self, int reg, std::int64_t column, std::int64_t heads, std::int64_t head_dim, const Table& cos,
               const Table& sin) {
                check_same("cos", cos.size(), "sin", sin.size());
                check_same("the last axis of cos", cos.shape(1), "of sin", sin.shape(1));
                self.rope(reg, column, heads, head_dim, cos.data(), sin.data(),
                          static_cast<std::int64_t>(cos.shape(0)), static_cast<std::int64_t>(cos.shape(1)));
            },
            "register"_a, "column"_a, "heads"_a, "head_dim"_a, "cos"_a.noconvert(), "sin"_a.noconvert(),
            nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>())
        .def("store_kv", &Program::store_kv, "layer"_a, "source"_a, "key_column"_a, "value_column"_a)
        .def("paged_attention", &Program::paged_attention, "out"_a, "source"_a, "query_column"_a, "heads"_a, "layer"_a,
             "scale"_a)
        .def("silu_mul", &Program::silu_mul, "out"_a, "source"_a)
        .def("add", &Program::add, "out"_a, "source"_a)
        .def("gather_rows", &Program::gather_rows, "out"_a, "source"_a)
        .def("run", &run, "token_ids"_a.noconvert(), "computed"_a.noconvert(), "scheduled"_a.noconvert(),
             "block_table"_a.noconvert(), "rows"_a.noconvert(), "logit_rows"_a.noconvert(), "logits"_a.noconvert())
        .def("expect_runs", &Program::expect_runs, "blocks"_a)
        .def("enable_profile", &Program::enable_profile, "on"_a)
        .def("profile", &Program::profile);
}

std::vector<SamplingSettings> settings_of(std::size_t rows, const Doubles& temperature, const Indices& top_k,
                                          const Doubles& top_p, const Doubles& min_p, const Doubles& uniform) {
    check_same("temperature", temperature.size(), "the logits' rows", rows);
    check_same("top_k", top_k.size(), "the logits' rows", rows);
    check_same("top_p", top_p.size(), "the logits' rows", rows);
    check_same("min_p", min_p.size(), "the logits' rows", rows);
    check_same("uniform", uniform.size(), "the logits' rows", rows);
    std::vector<SamplingSettings> settings(rows);
    for (std::size_t row = 0; row < rows; ++row)
        settings[row] = {static_cast<float>(temperature.data()[row]), top_k.data()[row], top_p.data()[row],
                         min_p.data()[row], uniform.data()[row]};
    return settings;
}

nb::tuple choose(RowSampler& self, const ReadOnlyLogits& logits, const Doubles& temperature, const Indices& top_k,
                 const Doubles& top_p, const Doubles& min_p, const Doubles& uniform) {
    const std::size_t rows = logits.shape(0);
    if (logits.size() > 0 && logits.shape(1) > 1 && logits.stride(1) != 1)
        throw nb::type_error("the logits' rows are not contiguous");
    const auto settings = settings_of(rows, temperature, top_k, top_p, min_p, uniform);
    std::vector<SampledToken> chosen(rows);
    {
        const nb::gil_scoped_release release;
        self.choose(logits.data(), static_cast<std::int64_t>(rows), logits.stride(0),
                    static_cast<std::int64_t>(logits.shape(1)), settings.data(), chosen.data());
    }
    std::vector<std::int32_t> tokens(rows);
    std::vector<float> highest(rows);
    for (std::size_t row = 0; row < rows; ++row) {
        tokens[row] = chosen[row].token;
        highest[row] = chosen[row].highest;
    }
    return nb::make_tuple(tokens, highest);
}

void bind_row_sampler(nb::module_& m) {
    nb::class_<RowSampler>(m, "RowSampler")
        .def(nb::init<std::shared_ptr<Runtime>>(), "runtime"_a)
        .def("choose", &choose, "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "uniform"_a)
        .def(
            "candidates",
            [](RowSampler& self, const Vector& logits, double temperature, std::int32_t top_k, double top_p, double min_p) {
                return self.candidates(logits.data(), static_cast<std::int64_t>(logits.size()),
                                       {static_cast<float>(temperature), top_k, top_p, min_p, 0.0});
            },
            "logits"_a.noconvert(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a);
}

}  // namespace
}  // namespace octavo

NB_MODULE(_native, m) {
    m.doc() = "Octavo's kernels.";
    // A process may end while a thread still holds a program; that is no leak worth a warning on the user's terminal.
    nb::set_leak_warnings(false);
    octavo::bind_runtime(m);
    octavo::bind_not_finite(m);
    octavo::bind_encoded_matrix(m);
    octavo::bind_weight(m);
    octavo::bind_kv_storage(m);
    octavo::bind_program(m);
    octavo::bind_row_sampler(m);
}
