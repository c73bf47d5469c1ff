// Package record seals the record of a fleet: calls with their outcomes, the actions of operators and
// programs, connections, changes of firmware, steps of campaigns and approvals. It makes one log of their
// entries that shows whether an entry was changed, removed, inserted or moved later.
//
// The transaction that stores the row of an entry also queues its [Leaf], which contains the hash of the
// entry's line. Each second the [Sequencer] of the leader appends the queued leaves to a Merkle tree (RFC 6962,
// by golang.org/x/mod/sumdb/tlog), and signs the new root in a [Checkpoint]. [Verifier] compares the rows with
// the leaves, the leaves with the tree, and the tree with all checkpoints.
//
// The line of an entry is one line of JSON, at most 65,535 bytes long, that is made from the columns of the row
// (lines.go). Leaves, tiles and checkpoints have the formats of C2SP (tlog-tiles, tlog-checkpoint, tlog-proof),
// so other programs can read them.
//
// Who can write to the database can still add entries, as fleetd does. The log shows later changes only, and
// only to those who keep a checkpoint or the key in another place: see [Verifier.Against].
package record

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"
)

// A Kind is a kind of entry. It determines the table of the row, and the form of the line: another form needs
// another kind.
type Kind byte

// The kinds. The numbers are stored.
const (
	Call       Kind = 1 // a call with its outcome
	LateAnswer Kind = 2 // the answer to a call that had already ended
	Action     Kind = 3 // an audit entry
	Connection Kind = 4 // a change of presence
	Step       Kind = 5 // an event of a deployment
	Firmware   Kind = 6 // another build on a device
	Forgotten  Kind = 7 // the rows of a device that was never enrolled were deleted
	Dropped    Kind = 8 // the rows of a kind before a time were deleted, after their retention
	Started    Kind = 9 // the record began: older rows are not in the log
)

// Kinds lists the kinds of entries that have rows.
var Kinds = []Kind{Call, LateAnswer, Action, Connection, Step, Firmware}

var kindNames = [...]string{Call: "call", LateAnswer: "late_answer", Action: "action", Connection: "connection",
	Step: "campaign_step", Firmware: "firmware", Forgotten: "forgotten", Dropped: "dropped", Started: "started"}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", byte(k))
}

// A Leaf is an entry in the log.
type Leaf struct {
	Kind Kind
	Ref  string    // key of the row, in the kind's form; at most [MaxRef] bytes
	At   time.Time // creation time of the row, in microseconds
	Hash tlog.Hash // of the line
}

// MaxRef is the maximum length of a leaf's Ref.
const MaxRef = 255

// NewLeaf returns the leaf of an entry with the line.
func NewLeaf(k Kind, ref string, at time.Time, line []byte) Leaf {
	return Leaf{Kind: k, Ref: ref, At: at, Hash: tlog.RecordHash(line)}
}

// An entry's key is its kind, the length of its ref, the ref, and its time in microseconds since 1970.
const (
	keyBytes  = 1 + 1 + 8
	leafBytes = keyBytes + sha256.Size
	idBytes   = len(uuid.UUID{}) // of most refs
)

// appendKey appends the leaf without its hash.
func (l Leaf) appendKey(b []byte) []byte {
	b = append(b, byte(l.Kind), byte(len(l.Ref)))
	b = append(b, l.Ref...)
	return binary.BigEndian.AppendUint64(b, uint64(l.At.UnixMicro()))
}

// Append appends the stored form of the leaf.
func (l Leaf) Append(b []byte) []byte {
	return append(l.appendKey(slices.Grow(b, leafBytes+len(l.Ref))), l.Hash[:]...)
}

var errShort = errors.New("the leaves end within one")

// cutKey reads a leaf without its hash.
func cutKey(b []byte) (l Leaf, rest []byte, err error) {
	if len(b) < keyBytes || len(b) < keyBytes+int(b[1]) {
		return l, nil, errShort
	}
	end := 2 + int(b[1])
	l = Leaf{Kind: Kind(b[0]), Ref: string(b[2:end]), At: time.UnixMicro(int64(binary.BigEndian.Uint64(b[end:]))).UTC()}
	return l, b[end+8:], nil
}

// ParseLeaves reads consecutive leaves.
func ParseLeaves(b []byte) (leaves []Leaf, err error) {
	leaves = make([]Leaf, 0, len(b)/(leafBytes+idBytes)+1)
	for len(b) > 0 {
		var l Leaf
		if l, b, err = cutKey(b); err != nil {
			return nil, err
		}
		if len(b) < sha256.Size {
			return nil, errShort
		}
		l.Hash, b = tlog.Hash(b[:sha256.Size]), b[sha256.Size:]
		leaves = append(leaves, l)
	}
	return leaves, nil
}

// A Batch is a run of consecutive entries as they are stored: their keys, and their hashes.
type Batch struct {
	First  int64 // number of the first entry
	Keys   []byte
	Hashes []byte
}

// BatchOf returns the stored form of leaves.
func BatchOf(first int64, leaves []Leaf) Batch {
	b := Batch{First: first, Keys: make([]byte, 0, len(leaves)*(keyBytes+idBytes)),
		Hashes: make([]byte, 0, len(leaves)*sha256.Size)}
	for _, l := range leaves {
		b.Keys, b.Hashes = l.appendKey(b.Keys), append(b.Hashes, l.Hash[:]...)
	}
	return b
}

// Leaves returns the leaves of the batch. A damaged batch is an error.
func (b Batch) Leaves() (leaves []Leaf, err error) {
	keys, hashes := b.Keys, b.Hashes
	for len(keys) > 0 {
		var l Leaf
		if l, keys, err = cutKey(keys); err != nil {
			return nil, err
		}
		if len(hashes) < sha256.Size {
			return nil, errShort
		}
		l.Hash, hashes = tlog.Hash(hashes[:sha256.Size]), hashes[sha256.Size:]
		leaves = append(leaves, l)
	}
	if len(hashes) > 0 {
		return nil, errors.New("more hashes than entries")
	}
	return leaves, nil
}

// Span returns the earliest and the latest time of one or more leaves.
func Span(leaves []Leaf) (from, to time.Time) {
	from, to = leaves[0].At, leaves[0].At
	for _, l := range leaves[1:] {
		if l.At.Before(from) {
			from = l.At
		}
		if l.At.After(to) {
			to = l.At
		}
	}
	return from, to
}

// Subject returns the key of a row for people: an id, or a device.
func Subject(k Kind, ref string) string {
	switch k {
	case Call, LateAnswer, Action:
		if len(ref) == len(uuid.UUID{}) {
			return uuid.UUID([]byte(ref)).String()
		}
	case Step:
		if len(ref) == 2*len(uuid.UUID{}) {
			return uuid.UUID([]byte(ref[:16])).String() + "/" + uuid.UUID([]byte(ref[16:])).String()
		}
	}
	return strings.ToValidUTF8(ref, "\uFFFD")
}
