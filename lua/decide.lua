-- Purpose: part of the check and the merged script. Decides pairs, each by the function of its type.
-- KEYS: keys[i] is the key of pair `i`.
-- ARGV: args[1] has pair `i` at byte 20 * i - 11.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: windows in microseconds, costs in quota units.

-- Decides pair `i` and the pairs after it, as types.lua describes.
return function(i, admitted, full, CONTEXT)
  local quota, cost, window, typed_parameter = parse(PAIR_FORMAT, args[1], CLOCK_SIZE + 1 + PAIR_SIZE * (i - 1))
  local parameter = typed_parameter % TYPE_UNIT
  local pair_type = (typed_parameter - parameter) / TYPE_UNIT
  local decide_pair = function_of_type(pair_type)
  return decide_pair(i, admitted, full, '', PAIR, TYPE, CONTEXT)
end
