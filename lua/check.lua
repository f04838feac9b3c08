-- One check: every pair is read, then all are charged, or none.
local PAIR, PAIR_BYTES = '<I4I4I8', 16
local DECIDED, FULL = 1, 2
local ADMITS, WAITS, NEVER = 0, 1, 2

local pairs_read, admitted = {}, true
for i, key in ipairs(KEYS) do
  local quota, cost, window = struct.unpack(PAIR, ARGV[1], 1 + PAIR_BYTES * (i - 1))
  local log = read(key, window)
  log.quota, log.cost, log.wanting = quota, cost, 0
  if cost > 0 and log.used + cost > quota then
    log.wanting, admitted = log.used + cost - quota, false
  end
  pairs_read[i] = log
end

if admitted then
  for _, log in ipairs(pairs_read) do
    if log.cost > 0 and log.used > 0 and log.count >= MOST_RECORDS then return struct.pack('<BI8', FULL, now) end
  end
end

local reply = { struct.pack('<BI8', DECIDED, now) }
for i, log in ipairs(pairs_read) do
  local verdict, retry = ADMITS, 0
  if log.wanting > 0 then
    if log.cost > log.quota then
      verdict = NEVER
    else
      verdict, retry = WAITS, wait_for(log, log.wanting)
    end
  end
  local used, next_after, reset = log.used, log.window, 0
  if used > 0 then next_after, reset = wait_for(log, 1), wait_for(log, used) end
  if admitted and log.cost > 0 then
    reset = log.now + log.window - now
    if used == 0 then next_after = reset end
    used = used + log.cost
  end
  reply[i + 1] = struct.pack('<BI4I8I8I8', verdict, math.max(0, log.quota - used), retry, next_after, reset)
end

-- The first write comes after the last read.
if admitted then
  for _, log in ipairs(pairs_read) do
    if log.cost > 0 then charge(log, log.cost) end
  end
end
return table.concat(reply)
