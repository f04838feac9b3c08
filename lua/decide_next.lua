-- Purpose: part of every type: decides the pairs after pair `i`. Its lines are a part of the function of a type.
-- KEYS: not read.
-- ARGV: args[1] has pair `i` at byte 20 * i - 11.
-- Reply: `statuses`, those of the pairs after pair `i`, in order.
-- Units: windows in microseconds, costs in quota units.

-- Changes `admitted` and `full`. A pair of the same type needs no new function.
if i < #keys then
  local next_quota, next_cost, next_window, next_typed_parameter = parse(PAIR_FORMAT, args[1], CLOCK_SIZE + 1 + PAIR_SIZE * i)
  local next_parameter = next_typed_parameter % TYPE_UNIT
  local next_type = (next_typed_parameter - next_parameter) / TYPE_UNIT
  if next_type ~= pair_type then decide_pair = function_of_type(next_type) end
  admitted, full, statuses =
    decide_pair(i + 1, admitted, full, '', next_quota, next_cost, next_window, next_parameter, next_type, decide_pair, CONTEXT)
end
