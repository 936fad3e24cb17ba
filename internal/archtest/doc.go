// Package archtest has no code: its test is the table of who may import whom,
// and of the habits that a machine can check.
package archtest
