// Package config reads the program's configuration.
//
// It is strict: an unknown field, a value out of range, a field that is there
// twice are faults. All faults are reported at once, each with its place, what
// was expected, and what to write. Nothing here opens a file that the
// configuration names, dials an address or reads a clock.
package config
