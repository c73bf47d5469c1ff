package enrolment

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/internal/writebehind"
)

// A SerialKey is a serial number on record, with the HMAC key in the fuses of the device that
// carries it.
type SerialKey struct {
	Serial    string
	SealedKey []byte // see [Sealer]; never leaves the server
	LoadedAt  time.Time
	LoadedBy  string

	Device  fleet.DeviceID // the first that proved to have the key; "" before
	BoundAt *time.Time

	WrongProofs int64 // activations with a wrong HMAC
	WrongAt     *time.Time

	// ConflictDevice proved to have the key after Device had: the key is in two units, or a
	// unit returned with another Device-Id.
	ConflictDevice fleet.DeviceID
	ConflictAt     *time.Time
}

// LogValue omits the key from logs.
func (k SerialKey) LogValue() slog.Value { return slog.StringValue(k.Serial) }

// String omits the key from errors.
func (k SerialKey) String() string { return k.Serial }

// A SerialState is the state of a serial number.
type SerialState string

// The states of serial numbers. Each can be used as a filter of a list.
const (
	SerialUnused   SerialState = "unused"   // loaded, but not proved by any device
	SerialBound    SerialState = "bound"    // proved by one device
	SerialConflict SerialState = "conflict" // proved by a second device
	SerialRefused  SerialState = "refused"  // a filter: it had wrong proofs
)

// State returns the state of the serial number.
func (k SerialKey) State() SerialState {
	switch {
	case k.ConflictDevice != "":
		return SerialConflict
	case k.Device != "":
		return SerialBound
	}
	return SerialUnused
}

func (k SerialKey) in(state SerialState) bool {
	switch state {
	case "":
		return true
	case SerialRefused:
		return k.WrongProofs > 0
	}
	return k.State() == state
}

// SerialStore stores serial numbers, each change with its audit entry.
type SerialStore interface {
	SerialKeys(ctx context.Context) ([]SerialKey, error)
	// AddSerials adds all keys or none; [fleet.ErrConflict] if one is already on record.
	AddSerials(ctx context.Context, by fleet.Principal, keys []SerialKey) error
	// BindSerial binds the serial number to the device, or returns [fleet.ErrConflict] if it is
	// bound to another. Binding it again changes nothing.
	BindSerial(ctx context.Context, by fleet.Principal, serial string, device fleet.DeviceID, at time.Time) error
	SetSerialConflict(ctx context.Context, by fleet.Principal, serial string, device fleet.DeviceID, at time.Time) error
	// ReleaseSerial ends the binding and the conflict.
	ReleaseSerial(ctx context.Context, by fleet.Principal, serial string) error
	DeleteSerial(ctx context.Context, by fleet.Principal, serial string) error
	// SaveWrongProofs stores counts and ignores those of unknown serial numbers.
	SaveWrongProofs(ctx context.Context, counts []WrongProofs) error
}

// WrongProofs is the number of wrong proofs of a serial number and the time of the last one.
type WrongProofs struct {
	Serial string
	Count  int64
	At     time.Time
}

// A ProofOutcome is the outcome of an activation with a serial number.
type ProofOutcome string

// The outcomes of proofs.
const (
	ProofAccepted  ProofOutcome = "accepted"  // the device is enrolled
	ProofMarked    ProofOutcome = "marked"    // right, but an operator decides
	ProofUnknown   ProofOutcome = "unknown"   // not on record; treated as a device without one
	ProofWrong     ProofOutcome = "wrong"     // the HMAC does not match
	ProofChallenge ProofOutcome = "challenge" // another device's challenge, or one that is used or expired
	ProofConflict  ProofOutcome = "conflict"  // right, but another device has proved the serial number
	ProofLimited   ProofOutcome = "limited"   // too many wrong proofs
	ProofLater     ProofOutcome = "later"     // cannot be stored now; the device tries again
)

// ProofOutcomes lists all outcomes.
var ProofOutcomes = []ProofOutcome{ProofAccepted, ProofMarked, ProofUnknown, ProofWrong, ProofChallenge, ProofConflict,
	ProofLimited, ProofLater}

// Serials are the serial numbers on record. They are held in memory because each boot poll
// looks one up.
type Serials struct {
	store  SerialStore
	sealer *Sealer
	now    func() time.Time
	log    *slog.Logger
	// counts are shown from memory. If the process is killed, the wrong proofs of the last
	// second are lost, even if a page or a program has seen them. No decision depends on them.
	counts *writebehind.Buffer[string, WrongProofs]
	proofs [8]atomic.Int64 // by index in ProofOutcomes

	loading sync.Mutex // serializes changes of the set

	mu     sync.RWMutex
	keys   map[string]*SerialKey
	owners map[fleet.DeviceID]int // how many serial numbers the device proved
	sorted []string               // all serial numbers; nil when outdated
}

// NewSerials returns a Serials service. Call Load before the first poll.
func NewSerials(store SerialStore, sealer *Sealer, log *slog.Logger) *Serials {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Serials{store: store, sealer: sealer, log: log, keys: make(map[string]*SerialKey),
		owners: make(map[fleet.DeviceID]int), now: func() time.Time { return time.Now().UTC() }}
	s.counts = writebehind.New(&writebehind.Buffer[string, WrongProofs]{Away: fleet.ErrUnavailable,
		What:  "wrong proofs of serial numbers",
		Write: s.saveCounts, Every: time.Second, Batch: 500, Limit: MaxSerials, Log: log})
	return s
}

// Load reads all serial numbers into memory.
func (s *Serials) Load(ctx context.Context) error {
	all, err := s.store.SerialKeys(ctx)
	if err != nil {
		return fmt.Errorf("loading serial numbers: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.sorted = make(map[string]*SerialKey, len(all)), nil
	s.owners = make(map[fleet.DeviceID]int)
	for _, k := range all {
		s.keys[k.Serial] = &k
		s.owners[k.Device]++
	}
	return nil
}

// bound reports whether the device proved a serial number that is on record. With a nil s it
// returns false.
func (s *Serials) bound(id fleet.DeviceID) bool {
	if s == nil {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.owners[id] > 0
}

// Run writes the counts of wrong proofs behind until ctx ends.
func (s *Serials) Run(ctx context.Context) error {
	s.counts.Run(ctx)
	return nil
}

func (s *Serials) saveCounts(ctx context.Context, batch map[string]WrongProofs) error {
	list := make([]WrongProofs, 0, len(batch))
	for _, c := range batch {
		list = append(list, c)
	}
	return s.store.SaveWrongProofs(ctx, list)
}

// Known reports whether the serial number is on record. With a nil s it returns false.
func (s *Serials) Known(serial string) bool {
	if s == nil || serial == "" {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.keys[serial] != nil
}

// Serial returns the record of a serial number, without its key.
func (s *Serials) Serial(serial string) (SerialKey, bool) {
	if s == nil {
		return SerialKey{}, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	k := s.keys[serial]
	if k == nil {
		return SerialKey{}, false
	}
	shown := *k
	shown.SealedKey = nil
	return shown, true
}

// A SerialLoad is the result of loading a list.
type SerialLoad struct {
	Added     int
	Unchanged int // already on record with the same key
}

// LoadList adds all serial numbers of a list, or none. An error of type [*SerialFileError]
// names the invalid lines.
func (s *Serials) LoadList(ctx context.Context, by fleet.Principal, list io.Reader) (SerialLoad, error) {
	if err := by.May(fleet.RoleAdmin, "load_serials"); err != nil {
		return SerialLoad{}, err
	}
	rows, problems, err := readSerials(list)
	if err != nil {
		return SerialLoad{}, err
	}
	if len(problems) > 0 {
		return SerialLoad{}, newSerialFileError(problems)
	}
	if len(rows) == 0 {
		return SerialLoad{}, fleet.Refuse(fleet.ErrInvalid, "serial_file_empty")
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	added, done, problems := s.compare(by, rows)
	if len(problems) > 0 {
		return SerialLoad{}, newSerialFileError(problems)
	}
	if len(added) > 0 {
		if err := s.store.AddSerials(ctx, by, added); err != nil {
			return SerialLoad{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range added {
		s.keys[k.Serial] = &k
	}
	s.sorted = nil
	return done, nil
}

// compare returns the rows that are new.
func (s *Serials) compare(by fleet.Principal, rows []serialRow) (added []SerialKey, done SerialLoad,
	problems []LineProblem) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.now()
	for _, row := range rows {
		old := s.keys[row.serial]
		if old == nil {
			if len(s.keys)+len(added) >= MaxSerials {
				return nil, done, append(problems, LineProblem{Line: row.line, Code: LineTooManyRows})
			}
			added = append(added, SerialKey{Serial: row.serial, SealedKey: s.sealer.seal(sealedSerial(row.serial), row.key),
				LoadedAt: now, LoadedBy: by.Name})
			continue
		}
		key, err := s.sealer.open(sealedSerial(row.serial), old.SealedKey)
		switch {
		case err != nil:
			problems = append(problems, LineProblem{Line: row.line, Code: LineUnreadable})
		case subtle.ConstantTimeCompare(key, row.key) != 1:
			problems = append(problems, LineProblem{Line: row.line, Code: LineOtherKey})
		default:
			done.Unchanged++
		}
	}
	done.Added = len(added)
	return added, done, problems
}

func sealedSerial(serial string) string { return "serial " + serial }

// check reports whether mac is the HMAC of the challenge with the serial number's key. It takes
// the same time for any key and any mac.
func (s *Serials) check(serial, challenge string, mac []byte) (bool, error) {
	s.mu.RLock()
	k := s.keys[serial]
	var sealed []byte
	if k != nil {
		sealed = k.SealedKey
	}
	s.mu.RUnlock()
	if sealed == nil {
		return false, nil
	}
	key, err := s.sealer.open(sealedSerial(serial), sealed)
	if err != nil {
		return false, err
	}
	want := hmac.New(sha256.New, key)
	want.Write([]byte(challenge))
	return hmac.Equal(want.Sum(nil), mac), nil
}

// countWrong counts a wrong proof of a known serial number.
func (s *Serials) countWrong(serial string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.keys[serial]; k != nil {
		now := s.now()
		k.WrongProofs, k.WrongAt = k.WrongProofs+1, &now
		s.counts.Put(serial, WrongProofs{Serial: serial, Count: k.WrongProofs, At: now})
	}
}

// count counts the outcome of a proof and returns it.
func (s *Serials) count(o ProofOutcome) ProofOutcome {
	s.proofs[slices.Index(ProofOutcomes, o)].Add(1)
	return o
}

// Proofs returns how many proofs had the outcome since the start of the process.
func (s *Serials) Proofs(o ProofOutcome) int64 {
	return s.proofs[slices.Index(ProofOutcomes, o)].Load()
}

// bind binds the serial number to the first device that proved it. For any other device it
// records the conflict and returns [fleet.ErrConflict].
func (s *Serials) bind(ctx context.Context, serial string, id fleet.DeviceID) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	k, ok := s.Serial(serial)
	now := s.now()
	switch {
	case !ok:
		return fleet.ErrNotFound
	case k.Device == id:
		return nil
	case k.Device != "":
		if k.ConflictDevice != id {
			s.log.Warn("a second device proved a serial number", "serial", serial, "device", id, "first", k.Device)
			if err := s.store.SetSerialConflict(ctx, enrolmentActor, serial, id, now); err != nil {
				return err
			}
			s.change(serial, func(k *SerialKey) { k.ConflictDevice, k.ConflictAt = id, &now })
		}
		return fleet.Refuse(fleet.ErrConflict, "serial_bound", "serial", serial, "device", k.Device)
	}
	if err := s.store.BindSerial(ctx, enrolmentActor, serial, id, now); err != nil {
		return err
	}
	s.change(serial, func(k *SerialKey) { k.Device, k.BoundAt = id, &now })
	return nil
}

// enrolmentActor is the principal of fleetd when it applies the rules of enrolment.
var enrolmentActor = fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd", Role: fleet.RoleAdmin}

func (s *Serials) change(serial string, f func(*SerialKey)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.keys[serial]; k != nil {
		s.owners[k.Device]--
		f(k)
		s.owners[k.Device]++
	}
}

// Release ends the binding of a serial number, and the next device that proves it is bound to
// it. An enrolled device stays enrolled.
func (s *Serials) Release(ctx context.Context, by fleet.Principal, serial string) error {
	return s.decide(by, serial, func() error {
		if err := s.store.ReleaseSerial(ctx, by, serial); err != nil {
			return err
		}
		s.change(serial, func(k *SerialKey) { k.Device, k.BoundAt, k.ConflictDevice, k.ConflictAt = "", nil, "", nil })
		return nil
	})
}

// Delete removes a serial number and its key from the record.
func (s *Serials) Delete(ctx context.Context, by fleet.Principal, serial string) error {
	return s.decide(by, serial, func() error {
		if err := s.store.DeleteSerial(ctx, by, serial); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if k := s.keys[serial]; k != nil {
			s.owners[k.Device]--
		}
		delete(s.keys, serial)
		s.sorted = nil
		return nil
	})
}

func (s *Serials) decide(by fleet.Principal, serial string, do func() error) error {
	if err := by.May(fleet.RoleAdmin, "change_serials"); err != nil {
		return err
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	if !s.Known(serial) {
		return fleet.Refuse(fleet.ErrNotFound, "unknown_serial", "serial", serial)
	}
	return do()
}

// SerialCounts are the numbers of serial numbers on record by state.
type SerialCounts struct {
	Total, Unused, Bound, Conflicts int
	Refused                         int // had wrong proofs
}

// Counts counts the serial numbers on record by state.
func (s *Serials) Counts() (c SerialCounts) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c.Total = len(s.keys)
	for _, k := range s.keys {
		switch k.State() {
		case SerialUnused:
			c.Unused++
		case SerialBound:
			c.Bound++
		case SerialConflict:
			c.Conflicts++
		}
		if k.WrongProofs > 0 {
			c.Refused++
		}
	}
	return c
}

// A SerialFilter selects serial numbers for a list, which is sorted by serial number.
type SerialFilter struct {
	State  SerialState // "": all
	Prefix string
	Limit  int
	Cursor string // the last serial number of the previous page
}

// List returns a page of the serial numbers on record, without their keys.
func (s *Serials) List(f SerialFilter) (fleet.Page[SerialKey], error) {
	if f.Cursor != "" && !serialPattern.MatchString(f.Cursor) {
		return fleet.Page[SerialKey]{}, fleet.Refuse(fleet.ErrInvalid, "invalid_cursor")
	}
	names := s.names()
	var p fleet.Page[SerialKey]
	limit := fleet.ClampLimit(f.Limit)
	from, found := slices.BinarySearch(names, f.Cursor)
	if found {
		from++
	}
	for _, name := range names[from:] {
		k, ok := s.Serial(name)
		if !ok || !k.in(f.State) || !strings.HasPrefix(name, f.Prefix) {
			continue
		}
		if len(p.Items) == limit {
			p.Next = p.Items[limit-1].Serial
			break
		}
		p.Items = append(p.Items, k)
	}
	return p, nil
}

// names returns the serial numbers in order.
func (s *Serials) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sorted == nil {
		s.sorted = make([]string, 0, len(s.keys))
		for serial := range s.keys {
			s.sorted = append(s.sorted, serial)
		}
		slices.Sort(s.sorted)
	}
	return s.sorted
}
