-- Admit: requests-charges, claim, executions-charges; in front of it now.lua,
-- judge.lua, usual.lua and charge.lua, which do almost all of it, then
-- record.lua, reserve.lua and limits.lua: Q1, R1 to R8, A1, A2. It is Reserve
-- where there are no charges.
--
-- KEYS[1]  the record; the other keys: one for each charge, all different,
--          requests first
-- ARGV     2 owner, 3 terms (see reserve.lua), 4 fingerprints, 5 tenant and
--          origin, 6 how many requests-charges there are, 7, … charges
-- Reply    a string: verdict (B), how many charges were asked (I4), now (i8),
--          what each of those found (see take.lua); then the reply to the claim,
--          if it was made: see reply in reserve.lua. Verdict: 0 requests
--          refused, nothing was written; 1 the claim was decided; 2 slow,
--          nothing was written; 3 executions refused: only the requests were
--          charged.
-- Cost     the sum of take.lua and reserve.lua
local REQUESTS_REFUSED, DECIDED, EXECUTIONS_REFUSED = 0, 1, 3
local executions = n - requests

local function say(verdict, asked, one, two, claim)
	local levels = table.concat(one or {})
	if two then
		levels = levels .. table.concat(two)
	end
	local all = { struct.pack('<BI4i8', verdict, asked, now) .. levels }
	if claim then
		for i = 1, table.maxn(claim) do
			all[i + 1] = claim[i] or false
		end
	end
	return all
end

local all, one, todo = judge(7, requests, 2)
if all == SLOW then
	return say(SLOW, 0)
elseif all == REFUSED_ALL then
	return say(REQUESTS_REFUSED, requests, one)
end
local code, r, write = decide(ARGV[2], ARGV[3], ARGV[4], ARGV[5])
local asked, two, todo2 = requests, nil, nil
if code % 16 == STARTED then
	local passed
	asked = requests + executions
	passed, two, todo2 = judge(7 + requests, executions, 2 + requests)
	if passed == SLOW then
		return say(SLOW, 0)
	elseif passed == REFUSED_ALL then
		settle(requests, 2, todo)
		return say(EXECUTIONS_REFUSED, asked, one, two)
	end
	settle(executions, 2 + requests, todo2)
end
settle(requests, 2, todo)
return say(DECIDED, asked, one, two, reply(code, r, write))
