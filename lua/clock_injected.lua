-- For tests: an instant of their own, and keys that stay while they play through hours.
local now, keep = tonumber(ARGV[2]), 3600000
