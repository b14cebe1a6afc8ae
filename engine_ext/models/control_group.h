// What the control groups of this process leave it: of memory and of CPU time, under version 2 and version 1.
// Every group from the process's own up to the root counts: a service's limit is in its own, a container's
// may be in any of them.
#pragma once

#include <cstdint>
#include <string>

namespace ion {

inline constexpr int64_t kNoLimit = INT64_MAX;

// Bytes that may still be taken, file cache that yields included; kNoLimit. `root`: of /proc and /sys.
int64_t control_group_bytes(const std::string& root = "");
// CPUs that the quota of time is worth, rounded up; kNoLimit.
int64_t control_group_cpus(const std::string& root = "");

// CPUs that the calling thread may use: of its affinity mask, and no more than the quota is worth. 1 at
// least.
int usable_cpus();

}  // namespace ion
