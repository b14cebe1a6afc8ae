// What is wrong with a model's files, said once for all readers. Knows no format.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace ion {

// Python sees it as ValueError. The message names the file's part (key, tensor, offset) and the fault.
class WeightError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// What a model wants does not fit; the message says the bytes needed and available. Python sees it as
// _ion.MemoryShort, a ValueError.
class MemoryShort : public WeightError {
 public:
  using WeightError::WeightError;
};

// Text from a foreign file, safe to put in a message: bytes outside printable ASCII become \xNN, cut at 96.
std::string quoted(std::string_view text);
// The same for a path, of which the end is kept: there stands the file's name.
std::string quoted_path(std::string_view path);

}  // namespace ion
