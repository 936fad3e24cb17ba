package idempotency

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
