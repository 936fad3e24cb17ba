package idempotency

// walker takes one scenario from state to state.
type walker struct {
	*scenario
	book   *book
	broken property // by the edge being made
	out    func(label, state)
}

func (w *walker) owner(i int) uint8 {
	if w.conduct.nodeIsOwner && i < 2 {
		return 1
	}
	return uint8(i + 1)
}

func (w *walker) emit(ev event, who int, x uint8, s state) {
	w.canon(&s)
	w.out(label{ev, uint8(who), x}, s)
	w.broken = 0
}

// canon forgets what can no longer matter.
func (w *walker) canon(s *state) {
	for i := range s.at {
		a := &s.at[i]
		if a.phase == finished || a.phase == crashed {
			*a = attempt{
				phase: a.phase, flight: a.flight, late: a.late, lateToken: a.lateToken, result: a.result,
				stale: a.stale, repeated: a.repeated && a.late == lateNotRun, left: a.left,
			}
			if a.flight != travelling {
				a.flight, a.stale = grounded, false
			}
			if a.late != lateDone {
				a.result = 0
			}
			if a.late == noMessage {
				a.phase = finished
			}
		}
		if a.phase != holding {
			a.own = 0
		}
		if a.flight != travelling || w.flight == 0 {
			a.left = 0
		}
	}
	if s.op.phase != 1 {
		s.op = operator{phase: s.op.phase}
	}
}

// write puts the store's new record in place.
func (w *walker) write(s *state, r reply) {
	if r.changed {
		s.op.fresh = false
	}
	if w.book.over(s.rec) && r.rec != s.rec {
		w.newLife(s)
	}
	v := &w.book.shapes[r.rec]
	switch {
	case v.state == Free:
		s.maxToken, s.owner = 0, 0
	case v.token < s.maxToken, r.begun && v.token == s.maxToken:
		w.broken |= p10Token
	}
	s.maxToken = max(s.maxToken, v.token)
	s.rec = r.rec
}

// newLife begins when a record has expired: its promises end with it.
func (w *walker) newLife(s *state) {
	s.effects, s.effect, s.told, s.takeovers, s.print, s.mayRun, s.sent, s.maxToken, s.owner = 0, 0, 0, 0, 0, 0, 0, 0, 0
	for i := range s.at {
		a := &s.at[i]
		if a.phase >= holding && a.phase < finished || a.flight == travelling {
			a.stale = true
		}
		if a.late == lateReserve && a.phase > voiding {
			a.late, a.lateToken = noMessage, 0
		}
	}
}

// tell gives a client the final answer of who.
func (w *walker) tell(s *state, who uint8) {
	switch s.told {
	case 0:
		s.told = who
	case who:
	default:
		w.broken |= p4OneAnswer
	}
}

// lookup answers a fenced attempt's client by the record.
func (w *walker) lookup(s *state) {
	if v := &w.book.shapes[s.rec]; v.state == Ended && v.class != FailedRetryable && v.expires > 0 {
		w.tell(s, v.result)
	}
}

func (w *walker) reserve(s *state, i int) reply {
	r := w.book.do(call{rec: s.rec, op: opReserve, who: w.owner(i), result: w.prints[i]})
	if v := &w.book.shapes[r.rec]; r.outcome == Replayed && v.print != w.prints[i]+1 {
		w.broken |= p7Print
	}
	changed := r.rec != s.rec
	if old := &w.book.shapes[s.rec]; r.outcome != Started && old.state == Held && old.owner == w.owner(i) && old.print == w.prints[i]+1 && old.marks>>old.owner&1 == 0 {
		w.broken |= p11Own
	}
	w.write(s, r)
	switch {
	case r.begun:
		if s.at[i].flight == grounded {
			s.at[i].stale = false
		}
		s.owner = uint8(i + 1)
		s.mayRun |= 1 << i
		if r.takeover {
			s.takeovers++
		}
	case r.outcome != Started && changed: // settled by the policy
		s.owner = 0
	}
	return r
}

// answered goes on with what Reserve said.
func (w *walker) answered(s *state, i int, r reply) uint8 {
	a := &s.at[i]
	x := uint8(r.outcome)
	a.phase = finished
	switch r.outcome {
	case Started:
		a.phase, a.token, a.takeover, a.own = holding, r.token, r.takeover, w.lease
		a.repeated = a.repeated || r.repeated
		if r.takeover {
			x |= 16
		}
	case Replayed:
		w.lookup(s)
	}
	if a.phase == finished && a.repeated && !w.conduct.keepsRepeat {
		a.phase = voiding // a copy of Reserve may still be on its way
	}
	return x
}

// apply makes a call that only the owner may make, and watches the fence.
func (w *walker) apply(s *state, i int, o op, token, result uint8) bool {
	a := &s.at[i]
	flag := o == opNotRun && a.repeated
	r := w.book.do(call{rec: s.rec, op: o, who: w.owner(i), token: token, result: result, flag: flag})
	before, over := w.book.shapes[s.rec], w.book.over(s.rec)
	after := w.book.shapes[r.rec]
	before.marks, after.marks = 0, 0
	over = over || before.state == Ended && before.expires <= 0 // then it may shrink
	written := before != after && !over
	if written && s.owner != uint8(i+1) {
		w.broken |= p5Fence
	}
	if !r.ok {
		return false
	}
	gone := o == opNotRun || o == opVoid
	if gone || o == opRetryable {
		s.mayRun &^= 1 << i
	}
	if gone && written {
		s.owner = 0
		if after.state == Free {
			if s.mayRun != 0 {
				w.broken |= p8Restore
			}
			s.print = 0
		}
	}
	w.write(s, r)
	return true
}

// end says how the attempt ended, and answers its client.
func (w *walker) end(s *state, i int) (ok bool) {
	a := &s.at[i]
	ok = w.apply(s, i, a.phase.ending().op(), a.token, a.result)
	if !ok {
		w.lookup(s)
	} else if a.phase == endDone {
		w.tell(s, a.result)
	}
	a.phase = finished
	return ok
}

// deliver brings a late message; nobody hears the reply.
func (w *walker) deliver(s *state, i int, m message, token uint8) {
	if m == lateReserve {
		w.reserve(s, i)
		return
	}
	w.apply(s, i, m.op(), token, s.at[i].result)
}

func (w *walker) maySend(a *attempt) bool {
	return (w.policy != Probe || !a.takeover || a.probed) && (w.conduct.noGuard || a.own > 0)
}

// send reports false if a step had to be saved first and was refused.
func (w *walker) send(s *state, i int) bool {
	a := &s.at[i]
	if w.steps && !w.apply(s, i, opStepStarted, a.token, 0) {
		return false
	}
	a.phase, a.flight, a.left = sent, travelling, w.flight
	if !a.stale {
		if s.print != 0 && s.print != w.prints[i]+1 {
			w.broken |= p7Print
		}
		s.print = w.prints[i] + 1
		s.sent |= 1 << i
	}
	return true
}

// happen is the effect at the upstream.
func (w *walker) happen(s *state, i int) {
	a := &s.at[i]
	if w.dedup && s.effect != 0 {
		a.result = s.effect
		return
	}
	if a.stale {
		if w.policy != Retry {
			w.broken |= p1Stale
		}
		return
	}
	a.result = uint8(i + 1)
	s.effects = min(s.effects+1, 7)
	if s.effect == 0 {
		s.effect = a.result
	}
	switch {
	case w.dedup:
		if s.effects > 1 {
			w.broken |= p3Dedup
		}
	case w.policy == Retry:
		if s.effects > 1+s.takeovers {
			w.broken |= p3Retry
		}
	case s.effects > 1:
		w.broken |= map[OnUnknown]property{Hold: p1Hold, Fail: p1Hold, Probe: p2Probe}[w.policy]
	}
	if s.told != 0 && w.policy != Retry && !w.dedup {
		w.broken |= p4OneAnswer
	}
}

func (w *walker) inFlight(s *state) bool {
	for i := range s.at {
		if s.at[i].flight == travelling {
			return true
		}
	}
	return false
}

// next emits all that can happen in s0.
func (w *walker) next(s0 *state) {
	for i := range w.n {
		w.upstream(s0, i)
		w.network(s0, i)
		w.attempt(s0, i)
	}
	w.time(s0)
	if w.operator {
		w.operate(s0)
	}
}

// upstream: what becomes of a request that was sent.
func (w *walker) upstream(s0 *state, i int) {
	a := &s0.at[i]
	if a.flight == travelling {
		s := *s0
		s.at[i].flight = effective
		w.happen(&s, i)
		w.emit(evEffect, i, 0, s)
		s = *s0
		s.at[i].flight = lost
		w.emit(evDies, i, 0, s)
		if !w.noTemporary {
			s = *s0
			s.at[i].flight = temporary
			w.emit(evTemporary, i, 0, s)
		}
	}
	if a.flight == effective && a.phase == sent {
		if w.conduct.transportRepeats {
			s := *s0
			s.at[i].flight, s.at[i].left = travelling, w.flight
			w.emit(evSend, i, 0, s)
		}
		if w.conduct.badGatewayRetries {
			s := *s0
			s.at[i].flight, s.at[i].phase, s.at[i].result = grounded, endRetry, 0
			w.emit(evAnswerTemporary, i, 0, s)
		}
	}
}

// network: late messages and crashes.
func (w *walker) network(s0 *state, i int) {
	a := &s0.at[i]
	if m := a.late; m != noMessage {
		s := *s0
		s.at[i].late, s.at[i].lateToken = noMessage, 0
		gone := s
		// No message is under way for as long as a record is kept: a Reserve
		// that was repeated and ended does not arrive in the key's next life.
		if m != lateReserve || a.phase <= voiding || !w.book.over(s0.rec) {
			w.deliver(&s, i, m, a.lateToken)
			w.emit(evArrives, i, uint8(m), s)
		}
		w.emit(evVanishes, i, uint8(m), gone)
	}
	if s0.crashes > 0 && a.phase > idle && a.phase < finished {
		s := *s0
		s.crashes--
		s.at[i].phase = crashed
		w.emit(evCrash, i, 0, s)
	}
}

// fail is a call whose sender sees an error. There is room for one message
// under way; where there is none, both fates happen at once.
func (w *walker) fail(s0 *state, i int, ev event, m message, token uint8, then phase) {
	if s0.errors == 0 {
		return
	}
	s := *s0
	s.errors--
	s.at[i].phase = then
	if s.at[i].late == noMessage {
		s.at[i].late, s.at[i].lateToken = m, token
		w.emit(ev, i, uint8(m), s)
		return
	}
	w.emit(ev, i, uint8(m), s)
	w.deliver(&s, i, m, token)
	w.emit(ev, i, uint8(m), s)
}

// attempt: what its own program does.
func (w *walker) attempt(s0 *state, i int) {
	a := &s0.at[i]
	s := *s0
	me := &s.at[i]
	switch a.phase {
	case idle:
		if i > 0 && s0.at[i-1].phase == idle && w.prints[i] == w.prints[i-1] {
			return // equal attempts come in order
		}
		r := w.reserve(&s, i)
		x := w.answered(&s, i, r)
		w.emit(evReserve, i, x, s)
		w.fail(s0, i, evReserveFails, lateReserve, 0, unsure)
	case unsure:
		me.repeated = true
		r := w.reserve(&s, i)
		x := w.answered(&s, i, r)
		w.emit(evReserveAgain, i, x, s)
		s = *s0
		me.phase = voiding
		w.emit(evReserveAbandoned, i, 0, s)
		if v := w.book.shapes[s0.rec]; w.conduct.batcherVoids && a.late == noMessage && v.state == Held && v.owner == w.owner(i) && !a.cancelled && s0.errors > 0 {
			s = *s0
			s.errors--
			me.late, me.cancelled = lateVoid, true
			w.emit(evBatcherVoids, i, 0, s)
		}
	case voiding:
		w.apply(&s, i, opVoid, 0, 0)
		me.phase = finished
		w.emit(evVoid, i, 0, s)
		w.fail(s0, i, evVoidFails, lateVoid, 0, voiding)
	case holding:
		w.hold(s0, i)
	case sent:
		w.extend(s0, i)
		me.phase = endUnsure
		if w.conduct.brokenIsNotRun {
			me.phase = endNotRun
		}
		if a.flight != travelling {
			me.flight = grounded
		}
		w.emit(evGiveUp, i, 0, s)
		switch a.flight {
		case effective:
			s = *s0
			me.phase, me.flight = endDone, grounded
			if a.stale {
				me.result = uint8(i + 1)
			}
			if w.steps {
				w.apply(&s, i, opStepDone, a.token, 0)
			}
			if w.conduct.answersFirst {
				w.tell(&s, me.result)
			}
			w.emit(evAnswer, i, 0, s)
		case temporary:
			s = *s0
			me.phase, me.flight = endRetry, grounded
			w.emit(evAnswerTemporary, i, 0, s)
		}
	case endDone, endRetry, endUnsure, endNotRun:
		if a.phase == endDone {
			w.extend(s0, i)
		}
		m := a.phase.ending()
		x := uint8(m)
		if !w.end(&s, i) {
			x |= 16
		}
		w.emit(evEnd, i, x, s)
		w.fail(s0, i, evEndFails, m, a.token, a.phase)
		if w.conduct.freesWhenSaveFails && a.phase == endDone && s0.errors > 0 {
			s = *s0
			s.errors--
			me.phase = endNotRun
			w.emit(evSaveFails, i, 0, s)
		}
	}
}

// hold: the key is the attempt's and nothing was sent.
func (w *walker) hold(s0 *state, i int) {
	w.extend(s0, i)
	a := &s0.at[i]
	s := *s0
	me := &s.at[i]
	if w.policy == Probe && a.takeover && !a.probed {
		if s.effects > 0 {
			me.phase, me.result = endDone, byProbe
			w.emit(evProbeDone, i, 0, s)
		} else {
			me.probed = true
			w.emit(evProbeNotDone, i, 0, s)
		}
		s = *s0
		me.phase = endUnsure
		w.emit(evProbeUnclear, i, 0, s)
		return
	}
	if w.maySend(a) {
		if w.send(&s, i) {
			w.emit(evSend, i, 0, s)
		}
		w.broken = 0
	}
	s = *s0
	me.phase = endNotRun
	w.emit(evRefused, i, 0, s)
}

func (w *walker) extend(s0 *state, i int) {
	a := &s0.at[i]
	v := &w.book.shapes[s0.rec]
	if v.state == Held && v.owner == w.owner(i) && v.lease >= w.lease && (w.conduct.noGuard || a.own >= w.lease || a.phase != holding) {
		return // nothing to renew
	}
	s := *s0
	if w.apply(&s, i, opRenew, a.token, 0) {
		if !w.conduct.noGuard {
			s.at[i].own = w.lease
		}
		if s != *s0 {
			w.emit(evExtend, i, 0, s)
		}
	} else if a.phase == holding || a.phase == sent && w.policy != Hold { // the client is answered by the record
		w.lookup(&s)
		s.at[i].phase = finished
		w.emit(evFenced, i, 0, s)
	}
	w.broken = 0
	if a.late == noMessage {
		w.fail(s0, i, evExtendFails, lateExtend, a.token, a.phase)
	}
}

// time: ticks, the store's clock, the sweeper.
func (w *walker) time(s0 *state) {
	if w.flight == 0 || !w.mustLand(s0) {
		s := *s0
		s.rec = w.book.do(call{rec: s.rec, op: opForward}).rec
		for i := range s.at {
			a := &s.at[i]
			a.own = max(a.own-1, 0)
			if a.flight == travelling {
				a.left = max(a.left-1, 0)
			}
		}
		if s != *s0 {
			w.emit(evTick, 0, 0, s)
		}
	}
	if s0.backs > 0 && w.book.shapes[s0.rec].state != Free {
		s := *s0
		s.backs--
		s.rec = w.book.do(call{rec: s.rec, op: opBack}).rec
		w.emit(evBack, 0, 0, s)
	}
	if s0.forwards > 0 && w.book.shapes[s0.rec].state != Free {
		s := *s0
		s.forwards--
		s.rec = w.book.do(call{rec: s.rec, op: opForward}).rec
		w.emit(evForward, 0, 0, s)
	}
	if r := w.book.do(call{rec: s0.rec, op: opExpire}); r.rec != s0.rec {
		s := *s0
		w.write(&s, r)
		w.emit(evSweep, 0, 0, s)
	}
}

// mustLand: a request has reached the end of the longest flight.
func (w *walker) mustLand(s *state) bool {
	last := int8(1)
	if w.conduct.closedFlight {
		last = 0
	}
	for i := range s.at {
		if s.at[i].flight == travelling && s.at[i].left <= last {
			return true
		}
	}
	return false
}

// operate: a truthful operator looks, while nothing travels, at a record that
// may be settled, and settles it later by what was seen.
func (w *walker) operate(s0 *state) {
	switch s0.op.phase {
	case 0:
		if w.inFlight(s0) || w.book.shapes[s0.rec].state != Held || !w.book.do(call{rec: s0.rec, op: opSettle, flag: true}).ok {
			return
		}
		s := *s0
		s.op = operator{phase: 1, fresh: true, saw: s.effects > 0}
		w.emit(evLook, 0, 0, s)
	case 1:
		o, ev := opForget, evForget
		if s0.op.saw {
			o, ev = opSettle, evSettle
		}
		r := w.book.do(call{rec: s0.rec, op: o, flag: s0.op.fresh})
		if !r.ok {
			return
		}
		s := *s0
		keepsOwner := w.book.shapes[r.rec].owner != 0
		w.write(&s, r)
		s.op.phase = 2
		if !keepsOwner {
			s.owner = 0
		}
		if o == opForget {
			s.mayRun = 0
			if s.effects == 0 {
				s.print = 0
			}
		}
		w.emit(ev, 0, 0, s)
	}
}

// aftermath goes on from s0 without further faults until all is over, and then
// makes one fresh claim (P6, P9).
func (w *walker) aftermath(s0 *state) (property, Outcome) {
	s := *s0
	for i := range w.n {
		a := &s.at[i]
		a.late, a.lateToken = noMessage, 0
		for a.phase > idle && a.phase < finished {
			switch a.phase {
			case unsure:
				a.phase = voiding
			case voiding:
				w.apply(&s, i, opVoid, 0, 0)
				a.phase = finished
			case holding:
				if !w.apply(&s, i, opRenew, a.token, 0) {
					a.phase = finished
					break
				}
				a.phase, a.result = endDone, uint8(i+1)
				if w.policy == Probe && a.takeover && !a.probed && s.effects > 0 {
					a.result = byProbe
					break
				}
				s.sent |= 1 << i
			case sent:
				a.phase = [...]phase{grounded: endUnsure, travelling: endUnsure, lost: endUnsure, effective: endDone, temporary: endRetry}[a.flight]
			default:
				w.end(&s, i)
			}
		}
	}
	s.rec = w.book.do(call{rec: s.rec, op: opLong}).rec
	w.broken = 0
	print := uint8(0)
	if v := &w.book.shapes[s.rec]; v.print > 0 {
		print = v.print - 1
	}
	out := w.book.do(call{rec: s.rec, op: opReserve, who: fresher, result: print}).outcome
	switch {
	case out == Started, out == Replayed, out == Archived && w.remember > 0:
	case out == Unknown && w.policy == Hold:
		if s.sent == 0 && s0.crashes == w.crashes && s.effects == 0 {
			return p9Unsent, out
		}
	default:
		return p6Ends, out
	}
	return 0, out
}
