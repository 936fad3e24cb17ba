package sqlitestore

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/escapement-dev/escapement/idempotency"
)

// child is what the test binary does as a child process. Its arguments are the
// path of the file and a number.
func child(what string) int {
	path := os.Args[1]
	n, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return complain(err)
	}
	s, err := Open(context.Background(), path, Options{})
	if err != nil {
		return complain(err)
	}
	defer s.Close()
	fmt.Println("ready")
	f := children[what]
	if f == nil {
		return complain(fmt.Errorf("no such child: %q", what))
	}
	err = f(s, n)
	if err != nil {
		return complain(err)
	}
	return 0
}

var children = map[string]func(s *Store, n int) error{
	"open":  func(*Store, int) error { return nil },
	"pairs": childPairs,
	"race":  childRace,
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func numbered(parts ...int) idempotency.Key {
	return idempotency.Key{ID: sha256.Sum256([]byte(fmt.Sprint(parts))), Tenant: "acme"}
}

// payloadOf is what the pair of a key stores: up to 20 KiB, so that some need
// overflow pages.
func payloadOf(k idempotency.Key) []byte {
	r := rand.NewChaCha8(k.ID)
	b := make([]byte, r.Uint64()%(20<<10))
	r.Read(b)
	return b
}

// childPairs reserves and ends without end, and says so after each End.
func childPairs(s *Store, round int) error {
	errs := make(chan error)
	for worker := range 8 {
		go func() {
			for i := 0; ; i++ {
				k := numbered(round, worker, i)
				a, err := s.Reserve(context.Background(), newClaim(k))
				if err == nil {
					err = s.End(context.Background(), a.Reservation, idempotency.Done(idempotency.Result{
						Class: idempotency.Succeeded, Status: 201, Payload: payloadOf(k),
					}))
				}
				if err == nil {
					_, err = fmt.Println(worker, i) // one write: lines do not mix
				}
				if err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	return <-errs
}

// childRace claims keys 0 to n-1 in a random order, once the parent says so,
// and says which it started.
func childRace(s *Store, n int) error {
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	keys := rand.Perm(n)
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for worker := range 8 {
		wg.Go(func() {
			for at := worker; at < n; at += 8 {
				a, err := s.Reserve(context.Background(), newClaim(numbered(keys[at])))
				if err != nil {
					errs <- err
					return
				}
				if a.Outcome == idempotency.Started {
					fmt.Println(keys[at])
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// command makes a child process.
func command(t *testing.T, what, path string, n int) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe, path, strconv.Itoa(n))
	c.Env = append(os.Environ(), childVar+"="+what)
	c.Stderr = os.Stderr
	return c
}
