package serve

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/escapement-dev/escapement/cmd/escapement/internal/config"
	"github.com/escapement-dev/escapement/httpgate"
)

// Block writes what a person wants to know at the start: where the program
// listens, where requests go, what is kept where and who shares it, which rules
// are in force, and what is worth a warning.
func (s *Server) Block(w io.Writer) error {
	c := s.config
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	scheme := "http"
	if c.TLS.Cert != "" {
		scheme = "https"
	}
	fmt.Fprintf(t, "Escapement %s\n", s.version)
	fmt.Fprintf(t, "  listen\t%s\n", address(scheme, s.Addr()))
	fmt.Fprintf(t, "  admin\t%s (livez, readyz; %s)\n", address("http", s.AdminAddr()), tokenWord(c.Admin.Token))
	fmt.Fprintf(t, "  upstream\t%s\n", c.Upstream)
	fmt.Fprintf(t, "  tenant\t%s\n", sourceWords(c.Identity.Tenant))
	fmt.Fprintf(t, "  records\t%s\n", recordsWord(c))
	fmt.Fprintf(t, "  limits\t%s\n", limitsWord(c))
	for _, rep := range s.stores.reports {
		fmt.Fprintf(t, "  redis\t%s; deadlines: limits %s, keys %s\n", reportWord(rep),
			config.FormatDuration(c.Redis.LimitDeadline), config.FormatDuration(c.Redis.KeyDeadline))
	}
	for _, rep := range s.stores.servers {
		fmt.Fprintf(t, "  postgres\t%s; deadlines: limits %s, keys %s\n", serverWord(rep),
			config.FormatDuration(c.Postgres.LimitDeadline), config.FormatDuration(c.Postgres.KeyDeadline))
		fmt.Fprintf(t, "  \t%s\n", lossWord(rep))
	}
	if c.LimiterURL().IsCluster() && len(c.Limits) > 0 {
		fmt.Fprintf(t, "  cluster\t%s\n", clusterWord(c))
	}
	fmt.Fprintf(t, "  keys\t%s\n", routeWord("POST and PATCH elsewhere", c.Default))
	for _, r := range c.Routes {
		fmt.Fprintf(t, "  \t%s\n", routeWord(r.Pattern, r))
	}
	for i, l := range c.Limits {
		name := ""
		if i == 0 {
			name = "rules"
		}
		fmt.Fprintf(t, "  %s\t%s\n", name, limitWord(l, c.LimiterURL()))
	}
	if s.otherSecret {
		fmt.Fprint(t, "  warning\tthe secret is not the one that this store was last used with: keys made with the other are not found, and a repeat of them runs again.\n"+
			"  \tAll processes that share a store need one secret\n")
	}
	for _, rep := range s.stores.reports {
		for _, text := range rep.Warnings {
			fmt.Fprintf(t, "  warning\t%s\n", text)
		}
	}
	for _, rep := range s.stores.servers {
		for _, text := range rep.Warnings {
			fmt.Fprintf(t, "  warning\t%s\n", text)
		}
	}
	for _, text := range s.stores.notes {
		fmt.Fprintf(t, "  warning\t%s\n", text)
	}
	if err := spoolable(); err != nil {
		fmt.Fprintf(t, "  warning\tkeyed requests with a body over %d KiB will be answered 503, since it cannot be held in a temporary file: %v\n"+
			"  \twrite: export TMPDIR=… before the start\n", httpgate.DefaultSpoolMemory>>10, err)
	}
	for _, f := range c.Warnings() {
		fmt.Fprintf(t, "  warning\t%s\n", strings.ReplaceAll(f.String(), "\n    ", "\n  \t"))
	}
	return t.Flush()
}

// spoolable makes and removes a file where large bodies are held.
func spoolable() error {
	f, err := os.CreateTemp("", "escapement-check-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// address writes an address as a URL that works on this machine.
func address(scheme string, a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return scheme + "://" + a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Sprintf("%s://localhost:%s (on every address of this host)", scheme, port)
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

func tokenWord(token string) string {
	if token == "" {
		return "no token: this machine only"
	}
	return "with its token"
}

func sourceWords(l httpgate.Sources) string {
	words := make([]string, len(l))
	for i, s := range l {
		words[i] = s.String()
	}
	return strings.Join(words, ", else ")
}

func recordsWord(c *config.Config) string {
	u := c.Store
	if u.IsRedis() {
		return u.String() + " shared by all processes that name it" + prefixWord(c)
	}
	if u.IsPostgres() {
		return u.String() + " durable. Shared by all processes that name it"
	}
	if u.Kind == "memory" {
		return u.String() + " private to this process. LOST AT A RESTART: every key and every stored answer; a repeat after it runs again"
	}
	return u.String() + " durable. Shared by the processes of this host that name the same file, not with other hosts"
}

func limitsWord(c *config.Config) string {
	u := c.LimiterURL()
	switch {
	case len(c.Limits) == 0:
		return u.String() + " no rules"
	case u.IsRedis():
		return u.String() + " shared by all processes that name it" + prefixWord(c)
	case u.IsPostgres():
		return u.String() + " shared by all processes that name it"
	}
	return u.String() + " private to this process: each process counts alone, and a restart fills every bucket"
}

func prefixWord(c *config.Config) string {
	if c.Redis.Prefix == "" {
		return ""
	}
	return " and the prefix " + c.Redis.Prefix
}

// clusterWord says which limits of a Cluster do not lie with the key's record.
func clusterWord(c *config.Config) string {
	var first, with []string
	for _, l := range c.Limits {
		if !c.Spread() && slices.Contains(l.By, "tenant") {
			with = append(with, l.Rule.Name)
		} else {
			first = append(first, l.Rule.Name)
		}
	}
	s := "every limit lies with its tenant's records: one round trip"
	if len(first) > 0 {
		s = "asked first, each in a round trip of its own, and given back if a later one refuses: " + strings.Join(first, " ")
	}
	if len(first) > 0 && len(with) > 0 {
		s += "; with the tenant's records: " + strings.Join(with, " ")
	}
	return s
}

func routeWord(name string, r config.Route) string {
	if r.Key == "off" {
		return name + ": off"
	}
	kept := config.FormatDuration(r.TTL)
	if r.Remember > 0 {
		kept += ", remembered " + config.FormatDuration(r.Remember)
	}
	return fmt.Sprintf("%s: %s, by %s, kept %s, unknown: %s, time-out %s",
		name, r.Key, strings.Join(r.Scope, "+"), kept, r.OnUnknown, config.FormatDuration(r.Timeout))
}

func limitWord(l config.Limit, u config.StoreURL) string {
	by := strings.Join(l.By, "+")
	if by == "" {
		by = "one bucket for all"
	} else {
		by = "by " + by
	}
	s := fmt.Sprintf("%s: %s", l.Rule.Name, config.FormatRate(l.Rule.Quota, l.Rule.Window))
	if l.Rule.Burst != 0 {
		s += fmt.Sprintf(", burst %d", l.Rule.Burst)
	}
	if l.Cost != 1 {
		s += fmt.Sprintf(", cost %d", l.Cost)
	}
	s = fmt.Sprintf("%s, %s, of %s on %s (%s)", s, by, l.Charge, strings.Join(l.Routes, " "), l.Rule.Algorithm)
	if !u.IsShared() {
		return s
	}
	s += map[bool]string{true: "; Redis", false: "; PostgreSQL"}[u.IsRedis()] + " away: " + l.OnUnavailable
	if l.OnUnavailable == "local" && l.LocalShare == 1 {
		s += ", the whole limit in each process"
	} else if l.OnUnavailable == "local" {
		s += fmt.Sprintf(", %v of the limit in each process", l.LocalShare)
	}
	return s
}
