package pgstore

import (
	"bytes"
	"unsafe"

	"github.com/escapement-dev/escapement/idempotency"
)

// writes are what a transaction writes about its records.
type writes struct {
	insert, update *columns
	remove         [][]byte
	drop           [][]byte // whose steps go
	put            steps
}

// steps are the arguments of queries.putSteps.
type steps struct {
	record                        [][]byte
	n, done, started, ended       []int64
	name, providerKey, providerID []string
	answer                        [][]byte
}

// statement is one statement with its arguments.
type statement struct {
	text    string
	args    []any
	inserts bool // it returns the keys that it inserted
}

func newWrites() *writes { return &writes{insert: newColumns(0), update: newColumns(0)} }

// inserts reports whether e is inserted.
func (w *writes) inserts(e *entry) bool { return !e.found && !empty(&e.next) && changed(e) }

func changed(e *entry) bool { return !e.locked && e.err == nil && e.next.Revision != e.prev.Revision }

// empty reports whether nothing of r needs to be kept.
func empty(r *idempotency.Record) bool { return r.State == idempotency.Free && len(r.Marks) == 0 }

// add adds what became of e.
func (w *writes) add(e *entry) {
	switch {
	case !changed(e), !e.found && empty(&e.next):
	case !e.found:
		w.insert.add(&e.next, false)
	case empty(&e.next):
		w.remove = append(w.remove, e.id[:])
		w.steps(e)
	default:
		w.update.add(&e.next, same(e.prev.Result.Payload, e.next.Result.Payload))
		w.steps(e)
	}
}

// same reports whether two slices are one: the rule hands payloads on as they
// are, so nothing needs to be compared.
func same(a, b []byte) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// steps adds the steps that differ. The rule replaces and adds steps, or drops
// them all.
func (w *writes) steps(e *entry) {
	old := e.prev.Steps
	next := e.next.Steps
	if empty(&e.next) {
		next = nil
	}
	if len(next) < len(old) {
		w.drop = append(w.drop, e.id[:])
		old = nil
	}
	for i, s := range next {
		if i < len(old) && sameStep(old[i], s) {
			continue
		}
		p := &w.put
		p.record = append(p.record, e.id[:])
		p.n = append(p.n, int64(i))
		p.name = append(p.name, escape(s.Name))
		p.done = append(p.done, number(s.Done))
		p.providerKey = append(p.providerKey, escape(s.ProviderKey))
		p.providerID = append(p.providerID, escape(s.ProviderID))
		p.started = append(p.started, micros(s.Started))
		p.ended = append(p.ended, micros(s.Ended))
		answer := s.Answer
		if len(answer) == 0 {
			answer = nil
		}
		p.answer = append(p.answer, answer)
	}
}

func sameStep(a, b idempotency.Step) bool {
	return a.Name == b.Name && a.Done == b.Done && a.ProviderKey == b.ProviderKey && a.ProviderID == b.ProviderID &&
		a.Started.Equal(b.Started) && a.Ended.Equal(b.Ended) && bytes.Equal(a.Answer, b.Answer)
}

// statements are what is to be run, in order.
func (w *writes) statements(q *queries) []statement {
	var list []statement
	if w.insert.len() > 0 {
		list = append(list, statement{text: q.insert, args: w.insert.args(nil), inserts: true})
	}
	if w.update.len() > 0 {
		list = append(list, statement{text: q.update, args: append(w.update.args(nil), w.update.same)})
	}
	if len(w.remove) > 0 {
		list = append(list, statement{text: q.remove, args: []any{w.remove}})
	}
	if len(w.drop) > 0 {
		list = append(list, statement{text: q.dropSteps, args: []any{w.drop}})
	}
	if p := &w.put; len(p.n) > 0 {
		list = append(list, statement{text: q.putSteps, args: []any{
			p.record, p.n, p.name, p.done, p.providerKey, p.providerID, p.started, p.ended, p.answer,
		}})
	}
	return list
}
