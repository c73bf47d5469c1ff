// Package lease decides which process serves a database: only one at a time, because its
// memory is the truth about connections, queues and campaigns.
//
// The lease is one row in a [Store]. Its holder renews it every [RenewEvery]. If a holder
// does not renew it for [Length], a process can replace the holder and gets the next term. A
// second process that starts in the meantime changes nothing: it gets a [HeldError], or stands
// by and replaces the holder when that ends ([Options.Standby]). Each term is on record
// ([Term]). A holder
// that could not renew, because the database was unavailable or the process was stopped,
// continues if its row is unchanged, and ends with a [TakenError] if another process replaced
// it. Until it knows which is the case, it makes no calls ([Keeper.Held]) and runs no
// campaigns ([Keeper.Lead]).
//
// The store rejects late writes of replaced processes: see postgres.Leases.Open.
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

// The holder renews the lease three times within its length.
const (
	Length     = 6 * time.Second
	RenewEvery = 2 * time.Second
)

// A Lease is the right to serve the database. The zero value is the lease of a database that
// has had no holder.
type Lease struct {
	Term        int       // 1 for the first holder, one more for each replacement
	Incarnation uuid.UUID // id of the process
	Holder
	Since     time.Time     // start of the term
	RenewedAt time.Time     // by the database's clock, like Since
	Left      time.Duration // time until it ends, by the database's clock; negative after the end
	Released  bool          // its holder stopped cleanly
}

// same reports whether the lease has neither changed hands nor been renewed since.
func (l Lease) same(other Lease) bool {
	return l.Incarnation == other.Incarnation && l.RenewedAt.Equal(other.RenewedAt)
}

// A Reason is why a term began: how the previous holder's lease ended.
type Reason string

// The reasons. A released lease may still be of a running process, which has stopped writing.
const (
	First    Reason = "first"    // no process held the lease before
	Released Reason = "released" // the holder stopped cleanly
	Silent   Reason = "silent"   // the holder did not renew the lease for its length
	Gone     Reason = "gone"     // the holder's process no longer exists on this machine
)

// A Term is the record of one holder's time.
type Term struct {
	Term        int
	Incarnation uuid.UUID
	Node        string
	Host        string
	Version     string
	Since       time.Time // by the database's clock, like Ended
	Reason      Reason
	Ended       *time.Time // when it was released, or else when the next term began; nil before
}

// KeptTerms is how many terms stay on record.
const KeptTerms = 1000

// A Holder is a process that serves the database.
type Holder struct {
	Node    string // --node-name
	Host    string
	PID     int
	Process string // machine, PID namespace and start: distinguishes processes with equal PIDs
	Version string
}

func (h Holder) String() string {
	if h.Node != "" && h.Node != h.Host {
		return fmt.Sprintf("fleetd %s on %s (node %s, process %d)", h.Version, h.Host, h.Node, h.PID)
	}
	return fmt.Sprintf("fleetd %s on %s (process %d)", h.Version, h.Host, h.PID)
}

// ThisProcess returns the holder that describes this process.
func ThisProcess(node, version string) Holder {
	host, _ := os.Hostname()
	return Holder{Node: node, Host: host, PID: os.Getpid(), Process: machine() + "/" + startOf(os.Getpid()),
		Version: version}
}

// gone reports whether the process has certainly ended, which is known only for this machine
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

// machine returns the id of this boot of the machine and of the PID namespace; "" if unknown.
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

// startOf returns when a process started, in ticks since boot; "dead" for a process that has
// ended but still has its PID, "" if unknown.
func startOf(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The format is "pid (name) state ppid ...", and a name may contain anything.
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
		"start with --standby to take over when it ends, or name another database with --database-url", e.By.Holder,
		e.By.Since.UTC().Format(time.DateTime+" UTC"))
}

// An UnfitError means that this process cannot serve the database, whichever process has the
// lease.
type UnfitError struct{ Err error }

func (e *UnfitError) Error() string { return e.Err.Error() }

func (e *UnfitError) Unwrap() error { return e.Err }

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
