// The files of /sys/fs/cgroup, at the places where systemd and container runtimes mount it.
#include "models/control_group.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>
#include <vector>

namespace ion {
namespace {

const std::string kMount = "/sys/fs/cgroup";
constexpr int kMaxCpuSets = 8;  // of 1,024 CPUs each

// The number at the beginning of a file; kNoLimit for "max", a negative number or an absent file.
int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value && value >= 0 ? value : kNoLimit;
}

// The number behind a name in a file of such lines; 0 where it is not there.
int64_t named_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  for (int64_t value = 0; file >> word >> value;) {
    if (word == name) return value;
  }
  return 0;
}

// The process's own group under a controller of version 1, or "" under version 2:
// "/system.slice/ion.service".
std::string group_of(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto names_at = line.find(':'), path_at = line.find(':', names_at + 1);
    if (names_at == std::string::npos || path_at == std::string::npos) continue;
    const std::string names = "," + line.substr(names_at + 1, path_at - names_at - 1) + ",";
    if (names.find("," + controller + ",") != std::string::npos) return line.substr(path_at + 1);
  }
  return "/";
}

// Folders from the process's own group up to the root. Where a container sees its own group as the root, the
// path is the host's: what is not there has no limit.
std::vector<std::string> folders(const std::string& root, const std::string& controller) {
  const std::string mount = root + kMount + (controller.empty() ? "" : "/" + controller);
  std::string group = group_of(root, controller);
  std::vector<std::string> out;
  for (; group.size() > 1; group.resize(group.rfind('/'))) {
    if (group.find("/..") == std::string::npos) out.push_back(mount + group);
  }
  out.push_back(mount);
  return out;
}

int64_t bytes_left(int64_t limit, int64_t used, int64_t yields) {
  return limit == kNoLimit || used == kNoLimit ? kNoLimit : std::max<int64_t>(0, limit - used + yields);
}

}  // namespace

int64_t control_group_bytes(const std::string& root) {
  int64_t least = kNoLimit;
  for (const std::string& folder : folders(root, "")) {
    // Above `high` the kernel slows the process down until it would rather not have taken them.
    const int64_t limit = std::min(number_in(folder + "/memory.max"), number_in(folder + "/memory.high"));
    const int64_t yields = named_number(folder + "/memory.stat", "inactive_file");
    least = std::min(least, bytes_left(limit, number_in(folder + "/memory.current"), yields));
  }
  for (const std::string& folder : folders(root, "memory")) {
    const int64_t limit = number_in(folder + "/memory.limit_in_bytes");
    const int64_t yields = named_number(folder + "/memory.stat", "total_inactive_file");
    least = std::min(least, bytes_left(limit, number_in(folder + "/memory.usage_in_bytes"), yields));
  }
  return least;
}

int64_t control_group_cpus(const std::string& root) {
  int64_t least = kNoLimit;
  const auto note = [&](int64_t quota, int64_t period) {
    if (quota == kNoLimit || period == kNoLimit || period == 0) return;
    least = std::min(least, std::max<int64_t>(1, (quota + period - 1) / period));
  };
  for (const std::string& folder : folders(root, "")) {
    std::ifstream file(folder + "/cpu.max");
    int64_t quota = 0, period = 0;
    if (file >> quota >> period) note(quota, period);
  }
  for (const std::string& folder : folders(root, "cpu")) {
    note(number_in(folder + "/cpu.cfs_quota_us"), number_in(folder + "/cpu.cfs_period_us"));
  }
  return least;
}

int usable_cpus() {
  std::array<cpu_set_t, kMaxCpuSets> mask{};
  int64_t num_cpus = std::thread::hardware_concurrency();
  if (sched_getaffinity(0, sizeof(mask), mask.data()) == 0) num_cpus = CPU_COUNT_S(sizeof(mask), mask.data());
  return static_cast<int>(std::clamp<int64_t>(num_cpus, 1, std::max<int64_t>(1, control_group_cpus())));
}

}  // namespace ion
