package memstore

import (
	"container/heap"
	"sync"
	"time"

	"github.com/escapement-dev/escapement/idempotency"
)

// Keys are spread by the top bits of their IDs, which are keyed hashes: nobody
// outside can aim at one shard. Shard after shard is the order of the IDs.
const (
	recordShardBits = 6
	recordShards    = 1 << recordShardBits
)

// shard holds the records of a range of IDs.
type shard struct {
	mu      sync.Mutex
	records map[idempotency.ID]*entry
	due     dueHeap
}

// entry is one record, what it counts, and its place among those that can
// expire. What a stored record's slices point to never changes: so they may be
// read, and copied, without the lock.
type entry struct {
	rec   idempotency.Record
	bytes int64
	keep  time.Time // see Record.Keep
	place int       // in the heap; -1 outside
}

func (m *Records) shard(id idempotency.ID) *shard { return &m.shards[id[0]>>(8-recordShardBits)] }

// get returns the record of id, or the zero Record. The lock is held.
func (s *shard) get(id idempotency.ID) idempotency.Record {
	if e := s.records[id]; e != nil {
		return e.rec
	}
	return idempotency.Record{}
}

// put stores rec, or removes what needs no keeping. It reports false, and
// changes nothing, if there is no record of id and no room for one. The lock
// of s is held.
func (m *Records) put(s *shard, id idempotency.ID, rec idempotency.Record, now time.Time) bool {
	e := s.records[id]
	rec, kept := idempotency.Expire(rec, now)
	if !kept {
		if e != nil {
			m.remove(s, id, e)
		}
		return true
	}
	size := size(rec)
	if e == nil {
		// Counted first and taken back if too much, so that concurrent calls
		// cannot exceed the bounds together.
		if m.count.Add(1) > m.maxRecords {
			m.count.Add(-1)
			return false
		}
		if m.bytes.Add(size) > m.maxBytes {
			m.bytes.Add(-size)
			m.count.Add(-1)
			return false
		}
		e = &entry{place: -1}
		s.records[id] = e
	} else {
		m.bytes.Add(size - e.bytes)
	}
	e.rec, e.bytes = rec, size
	s.schedule(e)
	return true
}

// remove forgets the entry. The lock of s is held.
func (m *Records) remove(s *shard, id idempotency.ID, e *entry) {
	if e.place >= 0 {
		heap.Remove(&s.due, e.place)
	}
	delete(s.records, id)
	m.count.Add(-1)
	m.bytes.Add(-e.bytes)
}

// schedule puts e where its time belongs. The lock is held.
func (s *shard) schedule(e *entry) {
	keep, ok := e.rec.Keep()
	switch {
	case !ok && e.place >= 0:
		heap.Remove(&s.due, e.place)
	case ok && e.place >= 0:
		e.keep = keep
		heap.Fix(&s.due, e.place)
	case ok:
		e.keep = keep
		heap.Push(&s.due, e)
	}
}

// expire removes or shrinks at most limit records of s whose time has come
// (E1), and returns how many.
func (m *Records) expire(s *shard, limit int, now time.Time) (done int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for done < limit && len(s.due) > 0 && !now.Before(s.due[0].keep) {
		e := s.due[0]
		m.put(s, e.rec.Key.ID, e.rec, now)
		done++
	}
	return done
}

// evict makes room by one record whose time has come, and reports whether
// there was one. It looks at the oldest of each shard and at no other.
func (m *Records) evict(now time.Time) bool {
	first := m.turn.Add(1)
	for i := range uint32(recordShards) {
		if m.expire(&m.shards[(first+i)%recordShards], 1, now) > 0 {
			return true
		}
	}
	return false
}

// recordBytes is counted for every record beside what its strings and slices
// hold: the structure, and its share of map and heap.
const recordBytes = 768

// size is what rec counts.
func size(rec idempotency.Record) int64 {
	const printBytes, markBytes, stepBytes = 48, 40, 160
	n := recordBytes + len(rec.Key.Tenant) + len(rec.Origin.Method) + len(rec.Origin.Route) + len(rec.Origin.Trace) +
		len(rec.Result.Payload) + printBytes*len(rec.Prints) + markBytes*len(rec.Marks) + stepBytes*len(rec.Steps)
	for _, p := range rec.Prints {
		n += len(p.Tag)
	}
	for _, s := range rec.Steps {
		n += len(s.Name) + len(s.ProviderKey) + len(s.ProviderID) + len(s.Answer)
	}
	return int64(n)
}

// dueHeap orders entries by the time until which they must be kept.
type dueHeap []*entry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].keep.Before(h[j].keep) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *dueHeap) Push(x any) {
	e := x.(*entry)
	e.place = len(*h)
	*h = append(*h, e)
}

func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.place = -1
	return e
}
