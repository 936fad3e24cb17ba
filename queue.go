package escapement

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// task is something that a store still has to be told. Each belongs to an
// attempt and keeps its slot, so there are never more than MaxRunning.
type task struct {
	try   func(ctx context.Context) bool // reports whether the store has it
	cap   time.Duration                  // the longest pause between two tries
	pause time.Duration                  // before the next try
	due   time.Time
}

// queue has the tasks in the order in which they are due.
type queue struct {
	wake chan struct{} // holds one: a task has come
	n    atomic.Int64  // how many tasks are waiting

	mu    sync.Mutex
	tasks taskHeap
}

func (q *queue) init() { q.wake = make(chan struct{}, 1) }

func (q *queue) add(t *task) {
	q.mu.Lock()
	heap.Push(&q.tasks, t)
	q.n.Add(1)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next takes the first task if it is due. Otherwise it returns nil and when to
// ask again, if there is any.
func (q *queue) next() (t *task, in time.Duration, some bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.tasks) == 0 {
		return nil, 0, false
	}
	if in := time.Until(q.tasks[0].due); in > 0 {
		return nil, in, true
	}
	q.n.Add(-1)
	return heap.Pop(&q.tasks).(*task), 0, true
}

// run tries t once, and puts it back with a longer pause if it is not done.
func (q *queue) run(ctx context.Context, t *task) {
	if t.try(ctx) {
		return
	}
	t.pause = min(max(2*t.pause, firstPause), t.cap)
	t.due = time.Now().Add(jitter(t.pause))
	q.add(t)
}

type taskHeap []*task

func (h taskHeap) Len() int           { return len(h) }
func (h taskHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h taskHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *taskHeap) Push(x any)        { *h = append(*h, x.(*task)) }
func (h *taskHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}
