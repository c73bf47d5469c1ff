package enrolment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/internal/table"
	"fleetd/fleet/internal/writebehind"
)

// A RotationState is the progress of a change of the key that signs device credentials.
type RotationState string

// The states of a rotation.
const (
	RotationRunning  RotationState = "running"  // the new key signs, both are accepted
	RotationAborting RotationState = "aborting" // the old key signs again, both are accepted
	RotationFinished RotationState = "finished" // the old key is refused
	RotationAborted  RotationState = "aborted"  // the new key is refused
)

// rotationRules are the rules of each state, and the states that finish and abort lead to.
var rotationRules = map[RotationState]struct {
	signsNew, acceptsOld, acceptsNew bool
	finish, abort                    RotationState // "": the act is not possible
}{
	RotationRunning:  {true, true, true, RotationFinished, RotationAborting},
	RotationAborting: {false, true, true, RotationAborted, ""},
	RotationFinished: {true, false, true, "", ""},
	RotationAborted:  {false, true, false, "", ""},
}

// A KeyRotation moves a fleet from one generation of the signing key to another. Each device
// gets new credentials when it next starts, because only then it requests them (protocol 2).
type KeyRotation struct {
	ID             int32
	FromGeneration int32
	ToGeneration   int32
	State          RotationState
	StartedAt      time.Time
	StartedBy      string
	EndedAt        *time.Time
	EndedBy        string
	LeftBehind     int64 // devices with the refused key when it ended
}

// Open reports whether both keys are accepted.
func (r KeyRotation) Open() bool { return r.State == RotationRunning || r.State == RotationAborting }

// Refuses returns the generation that the end of the rotation invalidates.
func (r KeyRotation) Refuses() int32 {
	if r.State == RotationAborting || r.State == RotationAborted {
		return r.ToGeneration
	}
	return r.FromGeneration
}

// A SigningKey is one generation of the key, sealed.
type SigningKey struct {
	Generation int32
	SealedKey  []byte
	CreatedAt  time.Time
}

// A KeyUse is the generation that a device last connected with.
type KeyUse struct {
	Rotation   int32
	Generation int32
	At         time.Time
}

// RotationCounts are the numbers of enrolled devices by their progress in a rotation.
type RotationCounts struct {
	New     int64 // last connected with the new key
	Old     int64 // seen since the start, but not with the new key
	NotSeen int64 // not seen since the start
}

// Left returns how many devices the end of the rotation would refuse, or has refused. They are
// refused until they restart.
func (c RotationCounts) Left(r KeyRotation) int64 {
	if r.Refuses() == r.ToGeneration {
		return c.New
	}
	return c.Old + c.NotSeen
}

// A RotationGroup is one of the groups that [RotationCounts] counts.
type RotationGroup string

// The groups of devices in a rotation.
const (
	RotationNew     RotationGroup = "new"
	RotationOld     RotationGroup = "old"
	RotationNotSeen RotationGroup = "not_seen"
)

// LeftGroups returns the groups of devices that the end of the rotation refuses.
func (r KeyRotation) LeftGroups() []RotationGroup {
	if r.Refuses() == r.ToGeneration {
		return []RotationGroup{RotationNew}
	}
	return []RotationGroup{RotationOld, RotationNotSeen}
}

// A RotationDevice is a device and its group in a rotation.
type RotationDevice struct {
	Device   fleet.DeviceID
	Name     string
	Group    RotationGroup
	Presence fleet.Presence
	LastSeen *time.Time
}

// A RotationFilter selects devices of a rotation.
type RotationFilter struct {
	Groups []RotationGroup // empty: all
	Limit  int
	Cursor string
}

// KeyStore stores signing keys and rotations. Each change is one transaction with its audit
// entry: if the process dies, the store has either the old state or the new one.
type KeyStore interface {
	// LatestRotation returns the latest rotation and the keys on record, or
	// [fleet.ErrNotFound] if there never was one.
	LatestRotation(ctx context.Context) (KeyRotation, []SigningKey, error)
	// StartRotation stores a rotation and its new key; [fleet.ErrConflict] if a rotation is
	// open or the generation exists by now.
	StartRotation(ctx context.Context, by fleet.Principal, r KeyRotation, key SigningKey) error
	// MoveRotation changes the state of a rotation; [fleet.ErrConflict] if it is no longer in
	// the state from. The end deletes the key that it refuses.
	MoveRotation(ctx context.Context, by fleet.Principal, r KeyRotation, from RotationState) error
	// ResetKeys ends any open rotation and replaces all keys by one, and the fingerprint of the
	// server's secret by another ([Fingerprint]).
	ResetKeys(ctx context.Context, by fleet.Principal, r KeyRotation, key SigningKey, fingerprint string) error
	SaveKeyUses(ctx context.Context, uses map[fleet.DeviceID]KeyUse) error
	KeyUses(ctx context.Context, rotation int32) (map[fleet.DeviceID]int32, error)
	RotationCounts(ctx context.Context, r KeyRotation) (RotationCounts, error)
	RotationDevices(ctx context.Context, r KeyRotation, f RotationFilter) (fleet.Page[RotationDevice], error)
}

// A keyRing is the set of keys that sign and are accepted at one moment.
type keyRing struct {
	rotation KeyRotation // the latest; the zero value if there never was one
	signs    int32
	keys     map[int32]signer // accepted, by generation
}

func (r *keyRing) issue(id fleet.DeviceID, clientID string, claim credentialClaim) *Credentials {
	claim.K = r.signs
	return r.keys[r.signs].issue(id, clientID, claim)
}

// verify checks a password and returns the device, Client-Id and claim of the credentials.
func (r *keyRing) verify(clientID, username string, password []byte) (id fleet.DeviceID, client string,
	claim credentialClaim, err error) {
	claim = readClaim(username)
	s, ok := r.keys[claim.K]
	switch {
	case claim.V != 1:
		return "", "", claim, notIssued(clientID)
	case ok:
	case claim.K > max(r.signs, r.rotation.ToGeneration):
		return "", "", claim, CredentialsUnknownKey
	default:
		return "", "", claim, CredentialsOldKey
	}
	id, client, err = s.verify(clientID, username, password)
	return id, client, claim, err
}

// notIssued returns the reason to refuse credentials whose username fleetd did not make.
func notIssued(clientID string) CredentialsError {
	if _, _, ok := parseMQTTClientID(clientID); !ok {
		return CredentialsMalformed
	}
	return CredentialsForged
}

// SigningKeys are the generations of the key that signs device credentials.
//
// Generation 0 is derived from the server's secret. Later generations are random and stored in
// the database, sealed with that secret: a backup of both is complete, and no file changes
// while fleetd runs.
type SigningKeys struct {
	store  KeyStore // nil: generation 0 alone
	sealer *Sealer
	// fingerprint is that of the server's secret.
	fingerprint string
	first       signer
	log         *slog.Logger
	now         func() time.Time
	ring        atomic.Pointer[keyRing]
	// uses are counted from the store after Settle, so only stored ones are shown. If the
	// process is killed, a lost use is recorded again when the device next connects.
	uses *writebehind.Buffer[fleet.DeviceID, KeyUse]
}

// keysRefresh is how often the keys are read again: another process may have started or ended a
// rotation.
const keysRefresh = 2 * time.Second

// NewSigningKeys returns SigningKeys for the server's secret. Without a store they have only
// generation 0.
func NewSigningKeys(store KeyStore, secret []byte, log *slog.Logger) (*SigningKeys, error) {
	first, err := newSigner(secret)
	if err != nil {
		return nil, err
	}
	sealer, err := NewSealer(secret)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	k := &SigningKeys{store: store, sealer: sealer, fingerprint: Fingerprint(secret), first: first, log: log,
		now: func() time.Time { return time.Now().UTC() }}
	k.ring.Store(&keyRing{keys: map[int32]signer{0: first}})
	if store != nil {
		k.uses = writebehind.New(&writebehind.Buffer[fleet.DeviceID, KeyUse]{Away: fleet.ErrUnavailable,
			What: "keys that devices use", Write: store.SaveKeyUses,
			Every: 500 * time.Millisecond, Batch: 1000, Limit: 1_000_000, Log: log})
	}
	return k, nil
}

// Load reads the keys. If its error is [ErrSealed], the keys were sealed with another secret of
// the server.
func (k *SigningKeys) Load(ctx context.Context) error {
	if k.store == nil {
		return nil
	}
	r, keys, err := k.store.LatestRotation(ctx)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("loading signing keys: %w", err)
	}
	if at := k.ring.Load().rotation; at.ID == r.ID && at.State == r.State {
		return nil
	}
	ring, err := k.newRing(r, keys)
	if err != nil {
		return err
	}
	k.ring.Store(ring)
	return nil
}

func (k *SigningKeys) newRing(r KeyRotation, sealed []SigningKey) (*keyRing, error) {
	rules := rotationRules[r.State]
	ring := &keyRing{rotation: r, signs: r.FromGeneration, keys: make(map[int32]signer, 2)}
	if rules.signsNew {
		ring.signs = r.ToGeneration
	}
	for generation, accepted := range map[int32]bool{r.FromGeneration: rules.acceptsOld,
		r.ToGeneration: rules.acceptsNew} {
		if !accepted {
			continue
		}
		s, err := k.signer(generation, sealed)
		if err != nil {
			return nil, err
		}
		ring.keys[generation] = s
	}
	return ring, nil
}

func (k *SigningKeys) signer(generation int32, sealed []SigningKey) (signer, error) {
	if generation == 0 {
		return k.first, nil
	}
	for _, s := range sealed {
		if s.Generation == generation {
			key, err := k.sealer.open(sealedGeneration(generation), s.SealedKey)
			if err != nil {
				return signer{}, err
			}
			return newSigner(key)
		}
	}
	return signer{}, fmt.Errorf("generation %d of the signing key is not in the database", generation)
}

func sealedGeneration(n int32) string { return "signing key generation " + strconv.Itoa(int(n)) }

// Run refreshes the keys and stores their use by devices, until ctx ends.
func (k *SigningKeys) Run(ctx context.Context) error {
	if k.store == nil {
		<-ctx.Done()
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.uses.Run(ctx)
	}()
	err := table.Follow(ctx, keysRefresh, "signing keys", k.log, k.Load)
	<-done
	return err
}

// used records the generation that a device connected with.
func (k *SigningKeys) used(id fleet.DeviceID, use keyNote) {
	k.uses.Put(fleet.DeviceID(strings.Clone(string(id))), KeyUse{Rotation: use.rotation, Generation: use.generation,
		At: k.now()})
}

// Rotation returns the latest rotation, by which credentials are judged now. Its ID is 0 if
// there never was one.
func (k *SigningKeys) Rotation() KeyRotation { return k.ring.Load().rotation }

// SigningGeneration returns the generation that signs now.
func (k *SigningKeys) SigningGeneration() int32 { return k.ring.Load().signs }

// Start makes a new key. From then on it signs, and both keys are accepted. confirm must be "rotate".
func (k *SigningKeys) Start(ctx context.Context, by fleet.Principal, confirm string) (KeyRotation, error) {
	if err := k.may(ctx, by); err != nil {
		return KeyRotation{}, err
	}
	if strings.TrimSpace(confirm) != "rotate" {
		return KeyRotation{}, errConfirm("rotate")
	}
	now := k.ring.Load()
	if now.rotation.Open() {
		return KeyRotation{}, fleet.Refuse(fleet.ErrConflict, "rotation_open")
	}
	r, key := k.next(now, by, RotationRunning)
	if err := k.store.StartRotation(ctx, by, r, key); err != nil {
		return KeyRotation{}, err
	}
	return k.reloaded(ctx)
}

// next returns the rotation to a new key, and that key, sealed.
func (k *SigningKeys) next(now *keyRing, by fleet.Principal, state RotationState) (KeyRotation, SigningKey) {
	at := k.now()
	generation := max(now.signs, now.rotation.ToGeneration) + 1
	return KeyRotation{FromGeneration: now.signs, ToGeneration: generation, State: state, StartedAt: at,
			StartedBy: by.Name},
		SigningKey{Generation: generation, SealedKey: k.sealer.seal(sealedGeneration(generation), randomKey()), CreatedAt: at}
}

// Finish ends the rotation. The key that does not sign is refused from then on and deleted. confirm
// is the number of devices that still use it; if there are more by now, Finish changes nothing.
func (k *SigningKeys) Finish(ctx context.Context, by fleet.Principal, confirm string) (KeyRotation, error) {
	return k.move(ctx, by, func(r *KeyRotation, c RotationCounts) error {
		next := rotationRules[r.State].finish
		typed, err := strconv.ParseInt(strings.ReplaceAll(strings.TrimSpace(confirm), ",", ""), 10, 64)
		left := c.Left(*r)
		switch {
		case next == "":
			return errNoRotation()
		case err != nil || typed < 0:
			return errConfirm(strconv.FormatInt(left, 10))
		case typed < left:
			return fleet.Refuse(fleet.ErrConflict, "devices_left", "left", left)
		}
		now := k.now()
		r.State, r.EndedAt, r.EndedBy, r.LeftBehind = next, &now, by.Name, left
		return nil
	})
}

// Abort makes the old key sign again. Devices that use the new one are accepted until
// [SigningKeys.Finish]. confirm must be "abort".
func (k *SigningKeys) Abort(ctx context.Context, by fleet.Principal, confirm string) (KeyRotation, error) {
	return k.move(ctx, by, func(r *KeyRotation, _ RotationCounts) error {
		next := rotationRules[r.State].abort
		switch {
		case next == "":
			return errNoRotation()
		case strings.TrimSpace(confirm) != "abort":
			return errConfirm("abort")
		}
		r.State = next
		return nil
	})
}

func (k *SigningKeys) move(ctx context.Context, by fleet.Principal, change func(*KeyRotation, RotationCounts) error) (
	KeyRotation,
	error) {
	if err := k.may(ctx, by); err != nil {
		return KeyRotation{}, err
	}
	r := k.Rotation()
	if !r.Open() {
		return KeyRotation{}, errNoRotation()
	}
	c, err := k.Counts(ctx)
	if err != nil {
		return KeyRotation{}, err
	}
	from := r.State
	if err := change(&r, c); err != nil {
		return KeyRotation{}, err
	}
	if err := k.store.MoveRotation(ctx, by, r, from); err != nil {
		return KeyRotation{}, err
	}
	return k.reloaded(ctx)
}

// Reset makes a new key, sealed with the present secret, and refuses every other. Use it if the
// server's secret was lost. confirm must be "reset".
func (k *SigningKeys) Reset(ctx context.Context, by fleet.Principal, confirm string) (KeyRotation, error) {
	if err := by.May(fleet.RoleAdmin, "reset_signing_key"); err != nil {
		return KeyRotation{}, err
	}
	if strings.TrimSpace(confirm) != "reset" {
		return KeyRotation{}, errConfirm("reset")
	}
	at, _, err := k.store.LatestRotation(ctx)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return KeyRotation{}, err
	}
	now := &keyRing{rotation: at, signs: at.FromGeneration}
	if rotationRules[at.State].signsNew {
		now.signs = at.ToGeneration
	}
	r, key := k.next(now, by, RotationFinished)
	r.EndedAt, r.EndedBy = &r.StartedAt, by.Name
	if err := k.store.ResetKeys(ctx, by, r, key, k.fingerprint); err != nil {
		return KeyRotation{}, err
	}
	return k.reloaded(ctx)
}

// may checks the role and reloads changes that another process may have made.
func (k *SigningKeys) may(ctx context.Context, by fleet.Principal) error {
	if err := by.May(fleet.RoleAdmin, "rotate_signing_key"); err != nil {
		return err
	}
	return k.Load(ctx)
}

// reloaded loads a stored change into memory. If that fails, [Run] does it within seconds.
func (k *SigningKeys) reloaded(ctx context.Context) (KeyRotation, error) {
	if err := k.Load(ctx); err != nil {
		return KeyRotation{}, err
	}
	r := k.Rotation()
	k.log.Info("signing key", "state", r.State, "from", r.FromGeneration, "to", r.ToGeneration)
	return r, nil
}

// Counts returns the progress of the latest rotation.
func (k *SigningKeys) Counts(ctx context.Context) (RotationCounts, error) {
	r := k.Rotation()
	if r.ID == 0 {
		return RotationCounts{}, nil
	}
	if err := k.uses.Settle(ctx); err != nil {
		return RotationCounts{}, err
	}
	return k.store.RotationCounts(ctx, r)
}

// Devices lists devices of the latest rotation.
func (k *SigningKeys) Devices(ctx context.Context, f RotationFilter) (fleet.Page[RotationDevice], error) {
	r := k.Rotation()
	if r.ID == 0 {
		return fleet.Page[RotationDevice]{}, nil
	}
	return k.store.RotationDevices(ctx, r, f)
}

// Restart returns the fan-out that restarts the connected devices which a restart would move to
// the signing key.
func (k *SigningKeys) Restart(ctx context.Context, by fleet.Principal, connected func(fleet.DeviceID) bool) (
	call.FanOutRequest, error) {
	if err := by.May(fleet.RoleAdmin, "restart_devices_for_key"); err != nil {
		return call.FanOutRequest{}, err
	}
	r := k.Rotation()
	if r.ID == 0 {
		return call.FanOutRequest{}, errNoRotation()
	}
	f := RotationFilter{Groups: r.LeftGroups(), Limit: fleet.MaxLimit}
	req := call.FanOutRequest{Actor: by, Tool: fleet.ToolReboot, MaxInFlight: restartsInFlight}
	for {
		page, err := k.store.RotationDevices(ctx, r, f)
		if err != nil {
			return call.FanOutRequest{}, err
		}
		for _, d := range page.Items {
			if connected(d.Device) {
				req.Devices = append(req.Devices, d.Device)
			}
		}
		if f.Cursor = page.Next; f.Cursor == "" || len(req.Devices)+fleet.MaxLimit > call.MaxFanOutDevices {
			break
		}
	}
	if len(req.Devices) == 0 {
		return call.FanOutRequest{}, fleet.Refuse(fleet.ErrInvalid, "empty_audience.key")
	}
	return req, nil
}

// restartsInFlight keeps most of a fleet connected while it restarts.
const restartsInFlight = 5

func errConfirm(want string) error {
	return fleet.Refuse(fleet.ErrInvalid, "not_confirmed.give", "value", want).At("confirm")
}

func errNoRotation() error {
	return fleet.Refuse(fleet.ErrConflict, "no_rotation")
}

// loadUses reads the generations that devices used since the latest rotation began.
func (k *SigningKeys) loadUses(ctx context.Context) (map[fleet.DeviceID]int32, error) {
	r := k.Rotation()
	if r.ID == 0 {
		return nil, nil
	}
	return k.store.KeyUses(ctx, r.ID)
}
