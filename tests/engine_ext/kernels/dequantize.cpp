// For test_kernels.py: reads rows in file layout on stdin, writes float32 on stdout, once dequantised from
// the file layout and once through packing, one after the other.
//   dequantize TYPE_NAME N K
// Without arguments: prints the instruction sets that the tests compare on this machine.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>

#include "support.h"

using namespace ion::kernels;

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const Isa isa : support::isas()) std::cout << isa_name(isa) << "\n";
    return 0;
  }
  if (argc != 4) return 2;
  const int64_t n = std::atoll(argv[2]), k = std::atoll(argv[3]);
  for (const DType dtype : support::all_dtypes()) {
    if (support::name(dtype) != argv[1]) continue;
    std::vector<std::byte> file(static_cast<std::size_t>(n * row_bytes(dtype, k)));
    if (std::fread(file.data(), 1, file.size(), stdin) != file.size()) return 3;
    ThreadPool pool(2);
    support::Aligned packed(packed_bytes(dtype, n, k, Numerics::fast));
    const PackedMatrix w = pack_matrix(packed.data(), file.data(), dtype, n, k, Numerics::fast, pool);
    std::vector<int32_t> ids(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> both = support::dequantized(file, dtype, n, k);
    both.resize(static_cast<std::size_t>(2 * n * k));
    gather_packed_rows(both.data() + n * k, ids.data(), n, w, pool);
    return std::fwrite(both.data(), 4, both.size(), stdout) == both.size() ? 0 : 4;
  }
  std::cerr << "no type " << argv[1] << "\n";
  return 2;
}
