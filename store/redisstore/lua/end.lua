-- End; in front of it now.lua and record.lua: F1 to F3, R9, R11, R12.
--
-- KEYS[1]  the record
-- ARGV     2 owner, 3 token, 4 "1" if the Reserve may have been repeated,
--          5 kind: 0 unknown, 1 done, 2 not run, 6 the result: class, by, not
--          kept (B), status, window (i8); 7 payload
-- Reply    1; 2 if it had been said before and nothing was written; 0 if fenced
-- Cost     TIME, HMGET, HSET, PEXPIRE or PERSIST; a repeated End of a done
--          record reads the stored payload
local owner, token, kind = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local UNKNOWN, DONE, NOT_RUN = 0, 1, 2
local again = ARGV[4] == '1'
local class, by, notkept, status, window = struct.unpack('<BBBi8i8', ARGV[6])
local payload = ARGV[7]

local r = load()
current(r)
if r.state == FREE then
	if kind ~= NOT_RUN then
		return 0
	elseif not again or owner == NOBODY or marked(r, owner) then
		return 2 -- it owns nothing, which is what it asks for
	end
	with_mark(r, owner)
elseif kind == NOT_RUN and owner ~= NOBODY and r.released == owner and r.token == token then
	return 2
elseif not owned(r, owner, token) then
	return 0
elseif r.state == ENDED and kind == DONE and r.class == class and r.by == by and r.notkept == notkept
	and r.status == status and r.window == window and r.plen == #payload
	and (redis.call('HGET', KEY, 'p') or '') == payload then
	return 2
elseif r.state ~= HELD then
	return 0
elseif kind == DONE then
	without_result(r)
	r.class, r.by, r.notkept, r.status, r.window, r.plen = class, by, notkept, status, window, #payload
	if payload ~= '' then
		r.set = { 'p', payload }
	end
	ended(r)
	if again and class == FAILED_RETRYABLE then -- R12: else a late copy claims by R6
		with_mark(r, owner)
	end
elseif kind == NOT_RUN then
	not_run(r)
	if again then
		with_mark(r, owner)
	end
elseif r.lease_end <= now then
	return 2
else
	r.lease_end = now
	written(r)
end
save(r)
return 1
