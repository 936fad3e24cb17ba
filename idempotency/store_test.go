package idempotency

import (
	"strings"
	"testing"
	"time"
)

func TestPageSize(t *testing.T) {
	for limit, want := range map[int]int{0: 100, 1: 1, 100: 100, 1000: 1000} {
		if got, err := PageSize(limit); got != want || err != nil {
			t.Errorf("PageSize(%d) = %d, %v; want %d", limit, got, err, want)
		}
	}
	for _, limit := range []int{-1, 1001} {
		if _, err := PageSize(limit); err == nil || !strings.Contains(err.Error(), "want 1 to 1000") {
			t.Errorf("PageSize(%d): %v, want an error that says the bounds", limit, err)
		}
	}
}

func TestFilterValidate(t *testing.T) {
	for _, s := range []Status{"", StatusFree, StatusInProgress, StatusUnknown, StatusSucceeded, StatusFailedFinal, StatusFailedRetryable, StatusArchived} {
		if err := (Filter{Status: s, Limit: MaxPage}).Validate(); err != nil {
			t.Errorf("status %q: %v", s, err)
		}
	}
	err := Filter{Status: "running", Limit: -1}.Validate()
	if err == nil || !strings.Contains(err.Error(), `"running"`) || !strings.Contains(err.Error(), "limit is -1") {
		t.Errorf("two faults: %v", err)
	}
}

func TestFilterSelects(t *testing.T) {
	r, _ := View(Record{
		Key: Key{ID: ID{1}, Tenant: "acme"}, State: Held, LeaseEnd: noon.Add(lease), Terms: termsOf(Hold),
		Origin: Origin{Route: "/orders"}, Updated: noon,
	}, noon.Add(time.Second))
	all := Filter{Status: StatusInProgress, Tenant: "acme", Route: "/orders", Older: time.Second}
	if !all.Selects(r) || !(Filter{}).Selects(r) {
		t.Fatal("a record that fits is not selected")
	}
	for name, spoil := range map[string]func(f *Filter){
		"status": func(f *Filter) { f.Status = StatusUnknown },
		"tenant": func(f *Filter) { f.Tenant = "umbrella" },
		"route":  func(f *Filter) { f.Route = "/refunds" },
		"age":    func(f *Filter) { f.Older++ },
	} {
		f := all
		spoil(&f)
		if f.Selects(r) {
			t.Errorf("another %s is selected", name)
		}
	}
}
