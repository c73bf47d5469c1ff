package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// A ConflictCode names a contradiction in a device's evidence.
type ConflictCode string

// ConflictDuplicateID means that two units use the same Device-Id.
const ConflictDuplicateID ConflictCode = "duplicate_device_id"

// A ConflictEvidence is one kind of evidence that two units share an id.
type ConflictEvidence string

// Kinds of evidence.
const (
	// Boot polls came with Client-Id A, then B, then A again.
	EvidenceClientIDsAlternate ConflictEvidence = "client_ids_alternate"
	// A unit polled with another Client-Id while the previous unit still uses its connection.
	EvidenceBothAlive ConflictEvidence = "both_alive"
	// Two connections repeatedly take over from each other.
	EvidenceTakeoversAlternate ConflictEvidence = "takeovers_alternate"
	// A unit polled with the device's own Client-Id while its connection answers.
	EvidenceConnectionAnswers ConflictEvidence = "connection_answers"
	// Boot polls with one Client-Id came from address A, then B, then A again.
	EvidenceAddressesAlternate ConflictEvidence = "addresses_alternate"
	// A unit polled or connected with the device's Client-Id but with no proof of its key, or
	// a wrong one.
	EvidenceKeyMissing ConflictEvidence = "device_key_missing"
	EvidenceKeyWrong   ConflictEvidence = "device_key_wrong"
)

// ConflictTTL is how long a conflict stays active after its latest evidence.
const ConflictTTL = 24 * time.Hour

// A DeviceConflict is a contradiction in a device's evidence, with the known facts about each
// side.
type DeviceConflict struct {
	Code                ConflictCode
	Evidence            []ConflictEvidence // kinds seen, without duplicates
	FirstSeen, LastSeen time.Time
	Sides               []ConflictSide // in the order first seen
}

// ClaimedHardware is the board or chip that an enrolled device claimed at its latest such
// boot poll, if it differs from the pinned hardware. It changes nothing until an operator
// accepts it.
type ClaimedHardware struct {
	Board, BoardType, Chip string // "" if the poll named none
	At                     time.Time
}

// A ConflictSide is one of the units that use an id. Its facts come from the unit, so they
// are untrusted; they are "" if it did not poll.
type ConflictSide struct {
	// Client is the [ClientTag] of its Client-Id. The Client-Id is not shown because,
	// together with the Device-Id, it is enough to get the device's credentials.
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

// Active reports whether the conflict is active at the given time. A nil conflict is not.
func (c *DeviceConflict) Active(now time.Time) bool {
	return c != nil && now.Sub(c.LastSeen) < ConflictTTL
}

// ClientTag returns a short name of a Client-Id that does not reveal it.
func ClientTag(clientID string) string {
	sum := sha256.Sum256([]byte("client-id " + clientID))
	return hex.EncodeToString(sum[:6])
}

// Complete marks the side that the device's credentials are bound to. If that side has not
// polled, Complete fills in its hardware and firmware from the device's record.
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
