-- Purpose: the type gate: stores the instant until which it blocks. Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the string of pair `i`.
-- ARGV: args[2] is the purpose.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants and waits in microseconds.

-- Decides the pair, as types.lua describes. Only an overage writes: its cost is how long the gate blocks, in units of `window`.
local key, purpose, blocked_for = keys[i], args[2], 0
local value = call('GET', key)
if value then
  if #value ~= GATE_SIZE then error('FOREIGNVALUE ' .. key) end
  blocked_for = parse(CLOCK_FORMAT, value) - now
  -- A clock may be behind by one longest block. A later instant is of another clock.
  if blocked_for < 0 or blocked_for > 2 * parameter then blocked_for = 0 end
end
local verdict, retry_after, receipt = ADMIT, 0, ''
if purpose == OVERAGE then
  local extended = math.min(cost * window, parameter)
  if extended > blocked_for then
    blocked_for = extended
  else
    cost = 0
  end
elseif cost > 0 and blocked_for > 0 and not EXCEEDS_QUOTA then
  admitted, verdict, retry_after = false, WAIT, blocked_for
end

INCLUDE 'decide_next.lua'

if purpose == OVERAGE and admitted and not full and cost > 0 then
  call('SET', key, pack(CLOCK_FORMAT, now + blocked_for), 'PX', math.ceil(blocked_for / 1000) + extra_ttl)
elseif HAS_RECEIPTS then
  receipt = NO_CHARGE
end
local remaining = quota
if blocked_for > 0 then remaining = 0 end
statuses = pack(STATUS_FORMAT, now, verdict, remaining, retry_after, blocked_for, blocked_for) .. receipt .. statuses
