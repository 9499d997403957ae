-- Compare and commit: the one script of the Redis store (docs/decisions/0008).
--
-- ARGV[1] is MessagePack: a list of steps, each {reads, writes}. A read is {n, revision}: the row KEYS[n] has to
-- be at this revision ('' means that it has to be absent). A write is {command, n, ...}: the command with KEYS[n]
-- and the rest as its arguments; n = 0 means no key (PUBLISH), and an argument that is a number i stands for
-- ARGV[i], since this MessagePack carries text alone. Steps are taken in order and see each other's writes; a
-- step whose reads don't hold writes nothing.
--
-- Returns {seconds, microseconds, results}. A result is 1 where the step was committed, else the list of the rows
-- that it read, as they are: false, or revision and document in one string.
local REVISION_BYTES = 16

local time = redis.call('TIME')
local results = {}
for s, step in ipairs(cmsgpack.unpack(ARGV[1])) do
  local rows, holds = {}, true
  for i, read in ipairs(step[1]) do
    local row = redis.call('GET', KEYS[read[1]])
    rows[i] = row
    if (row and string.sub(row, 1, REVISION_BYTES) or '') ~= read[2] then
      holds = false
    end
  end
  if holds then
    for _, write in ipairs(step[2]) do
      for i = 3, #write do
        if type(write[i]) == 'number' then
          write[i] = ARGV[write[i]]
        end
      end
      if write[2] == 0 then
        redis.call(write[1], unpack(write, 3))
      else
        redis.call(write[1], KEYS[write[2]], unpack(write, 3))
      end
    end
    results[s] = 1
  else
    results[s] = rows
  end
end
return {time[1], time[2], results}
