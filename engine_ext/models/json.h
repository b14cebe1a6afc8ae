// A small strict JSON reader for headers and configs of models. Knows no meaning of any key.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ion {

struct Json;
using JsonArray = std::vector<Json>;
using JsonObject = std::map<std::string, Json, std::less<>>;

// Integers that fit stay exact; every other number is a double.
struct Json {
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, JsonArray, JsonObject> value;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value); }
  const JsonObject* object() const { return std::get_if<JsonObject>(&value); }
  const JsonArray* array() const { return std::get_if<JsonArray>(&value); }
  const std::string* string() const { return std::get_if<std::string>(&value); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value); }
};

// Reads one document (RFC 8259, no duplicate keys, nesting up to 64). Throws WeightError with the byte
// offset.
Json parse_json(std::string_view text);

}  // namespace ion
