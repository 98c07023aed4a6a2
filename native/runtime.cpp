#include "runtime.h"

#include <stdexcept>

namespace octavo {
namespace {

constexpr int kMaxThreads = 1024;

const Path& find_path(const std::string& name) {
    for (const Path& path : all_paths())
        if (path.name == name && path.supported()) return path;
    std::string names;
    for (const std::string& available : available_paths()) names += (names.empty() ? "" : ", ") + available;
    throw std::invalid_argument("instruction path '" + name + "' does not exist here; this machine runs: " + names);
}

int checked_threads(int threads) {
    if (threads < 1 || threads > kMaxThreads)
        throw std::invalid_argument("threads is " + std::to_string(threads) + "; it must be 1 to " +
                                    std::to_string(kMaxThreads));
    return threads;
}

}  // namespace

std::vector<std::string> available_paths(bool variants) {
    std::vector<std::string> names;
    for (const Path& path : all_paths())
        if (path.supported() && (variants || !path.variant)) names.emplace_back(path.name);
    return names;
}

Runtime::Runtime(const std::string& path, int threads)
    : path_(find_path(path)), pool_(checked_threads(threads)), shares_(threads) {}

}  // namespace octavo
