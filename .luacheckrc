-- The settings of luacheck for the files of `lua` as they are, for example in an editor. `.ci/luacheck` checks the scripts as the
-- loader assembles them, with fewer exceptions.
std = { read_globals = {
  'error', 'math', 'pairs', 'pcall', 'select', 'string', 'table', 'tonumber', 'type', 'unpack',
  'redis', 'struct', 'KEYS', 'ARGV',
} }
max_line_length = 130

if os.getenv('ASSEMBLED') then
  -- An assembled line may be long. A shared parameter list has parameters that a function does not need. The variables of a
  -- function have the same names in the functions inside it, which take them as parameters.
  max_line_length = false
  -- Not every script needs all that clock.lua declares.
  ignore = { '212', '43[123]', '211/sub', '211/extra_ttl' }
else
  -- The names that the loader expands, and the variables for which they stand.
  globals = { 'INCLUDE' }
  for line in io.lines('lua/names.lua') do
    local name, expansion = line:match('^([%u_]+) = (.*)')
    if name then
      globals[#globals + 1] = name
      for word in expansion:gmatch('%f[%w_][%l_]+%f[^%w_]') do globals[#globals + 1] = word end
    end
  end
  -- The variables that the files of a function share.
  for _, name in ipairs {
    'i', 'purpose', 'used', 'rest', 'dropped_blocks', 'next_added', 'tree', 'newest', 'total',
    'front_byte', 'count', 'verdict', 'retry_after', 'next_freed_by', 'record_at', 'is_joined', 'status', 'refund_log',
    'refund_calendar', 'refund_tokens', 'refund_period', 'refund_from', 'TYPE_NUMBER', 'REFUND_FUNCTION', 'REFUND_WINDOWS',
  } do
    globals[#globals + 1] = name
  end
  -- A variable may be unused, or have another value than the one of its file.
  ignore = { '211', '212', '213', '221', '231', '241', '311', '321', '331', '431' }
  -- A name may stand for several values.
  files['lua/names.lua'] = { ignore = { '531' } }
end
