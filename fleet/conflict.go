package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// A ConflictCode says what contradicts itself about a device.
type ConflictCode string

// ConflictDuplicateID means that two units use one Device-Id.
const ConflictDuplicateID ConflictCode = "duplicate_device_id"

// A ConflictEvidence is one way in which two units under one id show.
type ConflictEvidence string

// The kinds of evidence.
const (
	// Boot polls with Client-Ids A, B and A again.
	EvidenceClientIDsAlternate ConflictEvidence = "client_ids_alternate"
	// A unit polled with another Client-Id, and the one before still uses its connection.
	EvidenceBothAlive ConflictEvidence = "both_alive"
	// Two connections take over from each other again and again.
	EvidenceTakeoversAlternate ConflictEvidence = "takeovers_alternate"
	// A unit polled with the device's own Client-Id while its connection answers.
	EvidenceConnectionAnswers ConflictEvidence = "connection_answers"
	// Boot polls with one Client-Id from addresses A, B and A again.
	EvidenceAddressesAlternate ConflictEvidence = "addresses_alternate"
	// A unit polled or connected with the device's Client-Id, and without a proof of its
	// key, or with a wrong one.
	EvidenceKeyMissing ConflictEvidence = "device_key_missing"
	EvidenceKeyWrong   ConflictEvidence = "device_key_wrong"
)

// ConflictTTL is how long a conflict stands after the latest evidence.
const ConflictTTL = 24 * time.Hour

// A DeviceConflict says that a device's evidence contradicts itself, and what
// is known of each side.
type DeviceConflict struct {
	Code                ConflictCode
	Evidence            []ConflictEvidence // kinds that were seen, each once
	FirstSeen, LastSeen time.Time
	Sides               []ConflictSide // by first sight
}

// ClaimedHardware is another board or chip than is pinned, as an enrolled device
// claimed at its latest such boot poll. It changes nothing until an operator accepts it.
type ClaimedHardware struct {
	Board, BoardType, Chip string // "" where it named none
	At                     time.Time
}

// A ConflictSide is one of the units that use an id. What it says of itself is
// untrusted, and may be "" where it did not poll.
type ConflictSide struct {
	// Client names its Client-Id, as [ClientTag] does: the Client-Id itself,
	// with the Device-Id, is all it takes to be given the device's credentials.
	Client     string    `json:"client"`
	RemoteAddr string    `json:"remote_addr"`
	Chip       string    `json:"chip"`
	Board      string    `json:"board"`
	Version    string    `json:"version"`
	ELFSHA256  string    `json:"elf_sha256"`
	FirstSeen  time.Time `json:"first_seen"`
	LastSeen   time.Time `json:"last_seen"`

	Bound bool `json:"-"` // its Client-Id is the one that the credentials are bound to
}

// Active reports whether the conflict stands at the given time. nil does not.
func (c *DeviceConflict) Active(now time.Time) bool {
	return c != nil && now.Sub(c.LastSeen) < ConflictTTL
}

// ClientTag is a short name of a Client-Id that does not give it away.
func ClientTag(clientID string) string {
	sum := sha256.Sum256([]byte("client-id " + clientID))
	return hex.EncodeToString(sum[:6])
}

// Complete marks the side that the device's credentials are bound to. The
// device's own record says what that one runs if it did not poll since.
func (c *DeviceConflict) Complete(d Device) {
	shared := len(c.Sides) > 1
	for _, s := range c.Sides {
		shared = shared && s.Client == c.Sides[0].Client
	}
	for i := range c.Sides {
		s := &c.Sides[i]
		s.Bound = s.Client == ClientTag(d.ClientID)
		if s.Bound && !shared && s.Board == "" && s.Chip == "" {
			s.Board, s.Chip, s.Version, s.ELFSHA256 = d.Board, d.Chip, d.Version, d.ELFSHA256
		}
	}
}
