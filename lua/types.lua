-- Purpose: part of the check and the merged script. The table of types: the number of each, and its file.
-- KEYS, ARGV: not read. Reply: none.
-- Units: none.

-- Returns the function that decides a pair of a type: it reads the pair, decides the pairs after it, and charges the pair if
-- all admit. Therefore every pair is read before the first one is charged.
--
-- The function takes the number of the pair, and the outcome of the pairs before: whether all admit, and whether a log is
-- full. It returns this outcome with the pair and those after it, and their statuses.
return function(pair_type)
  -- Only the functions of this type are created, because each one costs about one percent of a check.
  if pair_type == 0 then return INCLUDE 'sliding_log.lua'
  elseif pair_type == 1 then return INCLUDE 'sliding_buckets.lua'
  elseif pair_type == 2 then return INCLUDE 'sliding_counter.lua'
  elseif pair_type == 3 then return INCLUDE 'fixed_window.lua'
  elseif pair_type == 4 then return INCLUDE 'token_bucket.lua'
  else error('unknown type of a policy: ' .. pair_type) end
end
