package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	good := file("good.yaml", "upstream: http://127.0.0.1:1\nidentity: {tenant: const:a}\n")
	bad := file("bad.yaml", "upsteam: x\n")
	cert := file("cert.yaml", "upstream: http://127.0.0.1:1\nidentity: {tenant: const:a}\ntls: {cert: /no/c, key: /no/k}\n")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	free := []string{"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for _, tt := range []struct {
		args []string
		code int
		said string // on stderr
	}{
		{[]string{"version"}, 0, ""},
		{[]string{"--help"}, 0, ""},
		{[]string{"check", good}, 0, ""},
		{[]string{"check", bad}, 2, "did you mean upstream?"},
		{[]string{"check", filepath.Join(dir, "none")}, 2, "no such file"},
		{[]string{"serve"}, 2, "--upstream http"},
		{[]string{"serve", "-c", bad}, 2, "did you mean upstream?"},
		{append([]string{"serve", "-c", cert}, free...), 2, "/no/c"},
		{[]string{"serve", "--demo", "-c", good}, 2, "leave out -c"},
		{[]string{"nonsense"}, 2, "nonsense"},
		{[]string{"serve", "--upstream"}, 2, "--upstream"},
		{append([]string{"serve", "-c", good, "--store", "sqlite:" + dir + "/no/x.db"}, free...), 1, "does not exist"},
		{append([]string{"serve", "-c", good, "--store", "memory:"}, "--listen", "127.0.0.1:0", "--admin", busy.Addr().String()), 1, "admin.listen"},
		{[]string{"demo-upstream", "--listen", "127.0.0.1:0", "--data", dir}, 1, "data file"},
		{[]string{"demo-upstream", "--listen", "nowhere:0:0"}, 1, "nowhere"},
	} {
		var out, errs bytes.Buffer
		p := &Program{Stdout: &out, Stderr: &errs, LookupEnv: func(string) (string, bool) { return "", false }}
		code, done := p.ParseFlags(tt.args)
		if !done {
			code = p.Run(t.Context())
		}
		if code != tt.code || !strings.Contains(errs.String(), tt.said) || tt.code != 0 && out.Len() > 0 {
			t.Errorf("%v: exit code %d, want %d\nstdout: %s\nstderr: %s", tt.args, code, tt.code, &out, &errs)
		}
	}
}

// A demo that cannot start leaves nothing behind.
func TestDemoCleansUp(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	p := &Program{Stdout: io.Discard, Stderr: io.Discard, LookupEnv: os.LookupEnv}
	if code, done := p.ParseFlags([]string{"serve", "--demo", "--admin", "0.0.0.0:0"}); done {
		t.Fatal(code)
	}
	if code := p.Run(t.Context()); code != 2 {
		t.Errorf("exit code %d", code)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
