-- The names that the loader expands in all other files of this folder. This file is not sent to Redis.
--
-- A line is `NAME = expansion`. The loader (src/backend/redis/script/loader.rs) replaces every NAME by its expansion when it
-- assembles a script. README.md, "Names", has the reason.
-- Units: instants and windows in microseconds, usage and costs in quota units, sizes in bytes.

-- Parameters that many functions share.
-- What every deciding function needs. The keys and the arguments are parameters, because a global costs two look-ups.
CONTEXT = function_of_type, call, parse, pack, sub, keys, args, now, extra_ttl
-- What the search needs to read a log.
READER = call, parse, pack, sub
-- The outcome of a pair and those after it: whether all pairs admit, the reply if nothing can be charged, or false, and the
-- statuses.
OUTCOME = admitted, full, statuses
-- The type of the pair before, and its function. A pair of the same type needs no new function.
TYPE = pair_type, decide_pair
-- One pair of a check, as ARGV has it.
PAIR = quota, cost, window, parameter
-- One log as read: its key, its tail with the tree, the number of records in front of the blocks, the number of blocks, and
-- the tree: the number of its first block, how many of the first blocks may have a tag, and the units that the tags add to
-- the first block. Without a tree, `tagged` is 0.
LOG = key, tail, front, blocks, number, tagged, first_added
-- The oldest record in the window: its position, its instant, its start as stored, and where it is.
OLDEST = first, oldest, start, source, source_offset
-- The value of a sliding counter or a fixed window, as read_calendar.lua returns it.
CALENDAR = at, current, previous, is_first, generation
-- The entries of all holders as read_holders.lua returns them: the value, how far the clock has gone back since, and the
-- latest end. The entry of one holder: its identity, its end and its units.
HOLDERS = value, step, latest
HOLDER = id, id_high, own_end, units
-- Positions to search: from `low` up to, but not including, `high`; `probe` is the first to read.
RANGE = low, high, probe

-- The largest step of a search, in records. Then it bisects.
MAX_STEP = 64

-- In a search for an instant: the base and the units, which do not matter.
ANY_UNITS = 0, 0
-- In a search for units: the instant, which does not matter.
ANY_INSTANT = 0

-- ARGV has the number of a type of policy in the upper 3 bits of a field of 48 bits, and the parameter of the type in the
-- lower 45 bits.
TYPE_UNIT = 35184372088832

-- ARGV of a check: the deadline with the fields of the first pair, the fields of a pair, their size, and the size of
-- the generation, which comes last.
FIRST_PAIR_FORMAT = '<I8I4I4I6I6'
PAIR_FORMAT = '<I4I4I6I6'
PAIR_SIZE = 20
CLOCK_FORMAT = '<I8'
CLOCK_SIZE = 8
GENERATION_SIZE = 7
RESERVE = 'r'
PEEK = 'p'
OVERAGE = 'o'
LEASE = 'l'
LEASE_AHEAD = 'n'
DEBIT = 'd'
TAKE = 't'
LEAVE_AT_MOST = 'a'
-- Whether a purpose has receipts, and whether it charges beyond the quota. A plain charge has no purpose, and skips the
-- comparisons.
HAS_RECEIPTS = (purpose and (purpose == 'r' or purpose == 'd' or purpose == 'n'))
EXCEEDS_QUOTA = (purpose and (purpose == 'o' or purpose == 'd'))
-- ARGV of a lease or a take: a number of units, and its size.
UNITS_FORMAT = '<I4'
UNITS_SIZE = 4
-- ARGV of an answer: its instant, and those at which it ceases to apply and to be known; and the offset of the cost of the
-- first pair.
ANSWER_FORMAT = '<I8I8I8'
COST_OFFSET = 13

-- ARGV of a refund, after the deadline: the fields of a pair, their size, and the offset of the type and its parameter
-- among
-- them.
REFUND_FORMAT = '<I4I6I6c7I7I3'
REFUND_SIZE = 33
-- The purpose of a refund that settles a token, and its replies after the clock reading.
TOKEN = 's'
TOKEN_SETTLED = 's'
TOKEN_EXPIRED = 'e'
TYPE_FORMAT = '<I6'
TYPE_OFFSET = 11

-- The reply to a check: the status and the receipt of a pair, the generation that no pair has, the receipt without a charge, the
-- same with leased units, and the verdicts.
STATUS_FORMAT = '<I8BI4I8I8I8'
RECEIPT_FORMAT = '<c7I7I3'
NO_STATUS = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
NO_GENERATION = '\0\0\0\0\0\0\0'
NO_CHARGE = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
LEASE_FORMAT = '<c7I7I3I4'
NO_LEASE = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
ADMIT = 0
WAIT = 1
NEVER = 2
UNKNOWN = 3
UNKNOWN_WAIT = 4
-- Added to the verdict of a pair whose calendar period begins earlier than the one that is counted.
EARLIER_PERIOD = 16
-- The reply if a log is full.
FULL = 'full'

-- ARGV of a merged call: the number of pairs and of checks at the begin of a run.
RUN_FORMAT = '<BB'
RUN_SIZE = 2
-- The same with the fields of a check, as FIRST_PAIR_FORMAT has them.
RUN_AND_CHECK_FORMAT = '<BBI8I4I4I6I6'
-- The reply to a merged call: the offset and the format of `remaining` in a status, the length of an error text, and the
-- numbers that stand for a full log and for an error in place of the number of admitted checks.
REMAINING_FORMAT = '<I4'
REMAINING_OFFSET = 10
TEXT_FORMAT = '<I2'
MERGED_FULL = 254
MERGED_ERROR = 255

-- The tail of a log: the header, followed by records; with `c0`, by those that are packed already. A generation is `c7`, a
-- string, because a number of 56 bits is not exact in Lua.
HEADER_FORMAT = '<c7I7I7I7I5I5BI3'
HEADER_AND_RECORDS_FORMAT = '<c7I7I7I7I5I5BI3c0'
HEADER_RECORDS_AND_RECORD_FORMAT = '<c7I7I7I7I5I5BI3c0I7I5'
HEADER_SIZE = 42
-- The short tail of a log whose only record is that of the last charge: the generation, the last instant, the usage, and a check
-- of both, which is their sum modulo this prime, plus 1. Its size.
SHORT_FORMAT = '<c7I7I5I4'
CHECK_MODULUS = 4294967291
SHORT_SIZE = 23
-- In a refund: the instant of the record of the last charge. In buckets, it is the end of a bucket.
RECORD_OF_LAST = (precision > 0 and log.last - log.last % precision + precision or log.last)
RECORD_FORMAT = '<I7I5'
TWO_RECORDS_FORMAT = '<I7I5I7I5'
RECORD_SIZE = 12
BLOCK_RECORDS = 8
BLOCK_SIZE = 96
-- A tag at the end of a block: its format, its offset, the size of a block with it, and the last record of a block with
-- it and
-- without. The tree at the end of a tail: its format and its size.
TAG_FORMAT = '<I5'
TAG_OFFSET = 97
RECORD_AND_TAG_FORMAT = '<I7I5I5'
TAGGED_BLOCK_SIZE = 101
LAST_RECORD_OFFSET = 85
TREE_FORMAT = '<I5I3I5'
TREE_SIZE = 13
-- A refund changes the starts of at most this many records one by one. With fewer than 15, a record to raise may be in
-- the first block, which then has no tag.
DIRECT_RECORDS = 24
-- In the front byte, added to the number of records in front: a record may hold no units.
EMPTY_RECORDS = 8
-- Starts and totals are sums modulo 2^40.
START_MODULUS = 1099511627776
-- Live usage saturates at 2^39.
MAX_USED = 549755813888
-- A charge deletes at most this number of blocks, and one: some microseconds of the server. All blocks of a full log
-- would take 0.2 ms.
MAX_DROPPED_BLOCKS = 2048
-- A log holds at most 2^20 records.
MAX_RECORDS = 1048576

-- The value of a sliding counter or a fixed window.
CALENDAR_FORMAT = '<c7I7I5I5'
CALENDAR_SIZE = 24
-- The usage of a calendar window saturates at 2^33 - 1, so every product of the counter stays below 2^53.
MAX_CALENDAR_USED = 8589934591
-- A sliding counter moves in at most 2^20 ticks per window.
MAX_TICKS = 1048576

-- The value of a token bucket with receipts: the generation, the last instant, the usage in parts, and the parts of a unit; and
-- its numbers, without the generation. The value without receipts has these numbers, and the instant at which the key expires.
TOKENS_FORMAT = '<c7I7I7I6'
TOKENS_NUMBERS_FORMAT = '<I7I7I6'
TOKENS_SIZE = 27
PLAIN_TOKENS_FORMAT = '<I7I7I6I8'
PLAIN_TOKENS_SIZE = 28

-- The value of a calendar period: the generation, the last instant, the begin and the end of the period, and the usage; and its
-- numbers, without the generation.
PERIOD_FORMAT = '<c7I7I7I7I5'
PERIOD_NUMBERS_FORMAT = '<I7I7I7I5'
PERIOD_SIZE = 33
-- ARGV of a check: the parameter is a boundary between two periods in minutes, and the window the length of the period before it
-- times this unit, plus the length of the period after it.
PERIOD_UNIT = 16777216
MINUTE = 60000000

-- The value of a gate: the instant until which it blocks, as CLOCK_FORMAT has it.
GATE_SIZE = 8
-- The largest usage in parts. A sum with a capacity or a rate stays exact.
MAX_PARTS = 9007194959773696
-- The highest power of two below the largest number of parts of a unit.
MAX_PARTS_OF_UNIT = 17592186044416

-- Time to live of a log, in windows, and how often per window it is extended.
LIFETIME = 1.25
EXTENSIONS = 4

-- In flight. The value of a pair: the instant of the last write, as CLOCK_FORMAT has it, and the entries of the holders: the
-- identity of the holder, the end of the entry, and its units; their offset; and the size of an entry.
HOLDER_FORMAT = '<I6I2I7I4'
CLOCK_AND_HOLDER_FORMAT = '<I8I6I2I7I4'
HOLDER_UNITS_OFFSET = 15
HOLDER_SIZE = 19
-- Time to live of the entries, in times of what the latest of them has left; after a release also that of the numbers.
HELD_LIFETIME = (4 / 3)
-- The value of the numbers of a holder: at each index, a number and its units, or no number.
NUMBER_FORMAT = '<I4I4'
NUMBER_SIZE = 8
MIN_NUMBERS_SIZE = 64
NO_NUMBER = '\0\0\0\0\0\0\0\0'
-- A holder has fewer numbers of a pair.
MAX_NUMBERS = 131072
-- ARGV of a check: a parameter of at least this number is that of an acquisition.
ACQUISITION = 17592186044416
-- Added to it if the holder has no other number of the pair.
ALONE = 8796093022208
-- Numbers begin anew after this many.
NUMBERS = 4294967296
-- ARGV of the hold script: the deadline with the identity of the holder; the hold time of a pair, whether it is renewed,
-- the units that its entry has beyond its numbers, and the number of releases, each with an index and a number; and the
-- rest are the numbers to restore, with their units.
HOLD_FORMAT = '<I8I6I2'
CHANGES_FORMAT = '<I6Bi4I2'
CHANGES_SIZE = 13
RELEASE_FORMAT = '<I3I4'
RELEASE_SIZE = 7
RESTORE_FORMAT = '<I3I4I4'
RESTORE_SIZE = 11
-- The reply of the hold script: whether the changes of a pair were made, its units, and the size of the numbers
-- that follow.
LIST_FORMAT = '<BI4I4'
