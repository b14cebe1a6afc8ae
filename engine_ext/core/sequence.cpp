// See sequence.h.
#include "core/sequence.h"

#include <algorithm>
#include <utility>

namespace ion {

Sequence::Sequence(uint64_t id, std::vector<int32_t> prompt, const std::vector<std::string>& stops,
                   bool drops_space)
    : id(id),
      ids(std::move(prompt)),
      num_prompt(static_cast<int32_t>(ids.size())),
      text(stops, drops_space) {}

bool Sequence::is_ending_id(int32_t id) const {
  return std::find(ending_ids.begin(), ending_ids.end(), id) != ending_ids.end();
}

}  // namespace ion
