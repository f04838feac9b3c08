-- Purpose: part of the check and the merged script. The table of types: the loader repeats the line of it for each type.
-- KEYS, ARGV: not read. Reply: none.
-- Units: none.

-- Returns the function that decides a pair of a type: it reads the pair, decides the pairs after it, and charges the pair if
-- all admit. Therefore every pair is read before the first one is charged.
--
-- The function takes the number of the pair, and the outcome of the pairs before: whether all admit, `full`: the reply if
-- nothing can be charged, or false, and no statuses. It returns this outcome with the pair and those after it, and their
-- statuses. The file of a type has the lines of its function.
return function(pair_type)
  -- Only the functions of this type are created, because each one costs about one percent of a check.
  if pair_type == TYPE_NUMBER then return function(i, OUTCOME, PAIR, TYPE, CONTEXT) INCLUDE 'TYPE_FILE' return OUTCOME end end
  error('unknown type of a policy: ' .. pair_type)
end
