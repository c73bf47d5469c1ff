// Package lease decides which process serves a database: one at a time, as its
// memory is the truth about connections, lines and campaigns.
//
// The lease is one row, kept by a [Store]. Its holder renews it every
// [RenewEvery]; a holder that does not for [Length] can be replaced, by a process
// that gets the next term. A second process that starts meanwhile gets a
// [HeldError], and touches nothing. A holder that cannot renew, because the
// database is away or it was stopped, goes on if it finds its row unchanged, and
// ends with a [TakenError] if another process replaced it. Until it knows, it
// makes no call ([Keeper.Held]) and carries no campaign out ([Keeper.Lead]).
//
// What replaced processes still write is fenced off by the store: see
// postgres.Leases.Open.
package lease

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// The lease is renewed three times as often as it would take to lose it.
const (
	Length     = 6 * time.Second
	RenewEvery = 2 * time.Second
)

// A Lease is the right to serve the database. The zero value is that of a database
// that had no holder yet.
type Lease struct {
	Term        int       // 1 for the first holder, one more for each that replaces another
	Incarnation uuid.UUID // of the process
	Holder
	Since     time.Time     // of the term
	RenewedAt time.Time     // by the database's clock, as Since is
	Left      time.Duration // until it ends, by the database's clock; negative after that
	Released  bool          // its holder stopped in order
}

// same reports whether the holder neither changed nor renewed the lease since.
func (l Lease) same(other Lease) bool {
	return l.Incarnation == other.Incarnation && l.RenewedAt.Equal(other.RenewedAt)
}

// A Holder is a process that serves.
type Holder struct {
	Node    string // --node-name
	Host    string
	PID     int
	Process string // distinguishes it from others with its PID: machine, PID namespace, start
	Version string
}

func (h Holder) String() string {
	if h.Node != "" && h.Node != h.Host {
		return fmt.Sprintf("fleetd %s on %s (node %s, process %d)", h.Version, h.Host, h.Node, h.PID)
	}
	return fmt.Sprintf("fleetd %s on %s (process %d)", h.Version, h.Host, h.PID)
}

// ThisProcess is the holder that this process would be.
func ThisProcess(node, version string) Holder {
	host, _ := os.Hostname()
	return Holder{Node: node, Host: host, PID: os.Getpid(), Process: machine() + "/" + startOf(os.Getpid()),
		Version: version}
}

// gone reports whether the process has certainly ended: it was one of this machine
// and PID namespace. A restart after a crash then need not wait.
func (h Holder) gone() bool {
	here, start, ok := strings.Cut(h.Process, "/")
	if !ok || here == "" || here != machine() {
		return false
	}
	if errors.Is(syscall.Kill(h.PID, 0), syscall.ESRCH) {
		return true
	}
	now := startOf(h.PID)
	return now != "" && now != start
}

// machine names this boot of the machine and the PID namespace; "" if unknown.
func machine() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + namespace
}

// startOf is when a process started, in ticks since the boot; "dead" for one that
// has ended and still has its PID, "" if unknown.
func startOf(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// "pid (name) state ppid ...", and a name may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return "dead"
	}
	return fields[19]
}

// A HeldError means that another process serves the database.
type HeldError struct{ By Lease }

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s has served this database since %s and still does: stop it first, "+
		"or name another database with --database-url", e.By.Holder, e.By.Since.UTC().Format(time.DateTime+" UTC"))
}

// A TakenError means that another process replaced this one.
type TakenError struct{ By Lease }

func (e *TakenError) Error() string {
	if e.By.Term == 0 {
		return "the database does not know of this fleetd any more, as if a backup had been restored: " +
			"it ends, and can be started again"
	}
	return fmt.Sprintf("%s took the database over at %s, as this fleetd had not renewed its lease for %s: "+
		"it ends, and has written and sent nothing since", e.By.Holder, e.By.Since.UTC().Format(time.DateTime+" UTC"), Length)
}
