package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

var _ enrolment.ConflictStore = (*Store)(nil)

// DeviceConflicts returns the conflicts of devices in service with evidence since the given time,
// oldest first.
func (s *Store) DeviceConflicts(ctx context.Context, since time.Time) ([]enrolment.ConflictRecord, error) {
	var w where
	w.and("conflict_last > ?", since)
	w.and("in_service")
	w.scope(ctx)
	rows, _ := s.db.Query(ctx, `SELECT `+w.deviceColumns(ctx)+` FROM devices`+w.String()+` ORDER BY conflict_last, id`,
		w.args...)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (enrolment.ConflictRecord, error) {
		r, err := scanDevice(row)
		if err != nil {
			return enrolment.ConflictRecord{}, err
		}
		return enrolment.ConflictRecord{Device: r.ID, Conflict: *r.conflict()}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("conflicts: %w", domainError(err))
	}
	return list, nil
}

// SaveConflicts stores conflicts and replaces the previous ones.
func (s *Store) SaveConflicts(ctx context.Context, conflicts []enrolment.ConflictRecord) error {
	conflicts = slices.Clone(conflicts)
	slices.SortFunc(conflicts, func(a, b enrolment.ConflictRecord) int { return cmp.Compare(a.Device, b.Device) })
	var b pgx.Batch
	for _, r := range conflicts {
		sides, err := json.Marshal(cleanSides(r.Conflict.Sides))
		if err != nil {
			return fmt.Errorf("conflict of device %s: %w", r.Device, err)
		}
		b.Queue(`UPDATE devices SET conflict_code = $2, conflict_first = $3, conflict_last = $4, conflict_evidence = $5,
			conflict_sides = $6 WHERE id = $1`, string(r.Device), string(r.Conflict.Code), r.Conflict.FirstSeen,
			r.Conflict.LastSeen, r.Conflict.Evidence, sides)
	}
	if err := s.db.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("save %d conflicts: %w", len(conflicts), domainError(err))
	}
	return nil
}

// cleanSides makes the devices' texts storable.
func cleanSides(sides []fleet.ConflictSide) []fleet.ConflictSide {
	clean := make([]fleet.ConflictSide, len(sides))
	for i, side := range sides {
		for _, text := range []*string{&side.RemoteAddr, &side.Chip, &side.Board, &side.Version, &side.ELFSHA256} {
			*text = fleet.CleanText(cleanText(*text), 120)
		}
		clean[i] = side
	}
	return clean
}

// ResolveConflict removes the conflict and stores the resulting admission.
func (s *Store) ResolveConflict(ctx context.Context, by fleet.Principal, r enrolment.ConflictResolution,
	a enrolment.Admission,
	at time.Time) error {
	detail := map[string]any{"act": r.Act}
	if r.Client != "" {
		detail["client"] = r.Client
	}
	return s.audited(ctx, by, "device.resolve_conflict", string(a.Device), detail, func(tx pgx.Tx) error {
		if err := saveAdmission(ctx, tx, a, at); err != nil {
			return err
		}
		return changeOne(ctx, tx, `UPDATE devices SET conflict_code = NULL, conflict_first = NULL, conflict_last = NULL,
			conflict_evidence = NULL, conflict_sides = NULL WHERE id = $1`, a.Device)
	})
}

// ResolveHardware pins an enrolled device's claimed hardware, or discards the claim.
func (s *Store) ResolveHardware(ctx context.Context, by fleet.Principal, id fleet.DeviceID, accept bool) error {
	d, err := s.Device(ctx, id)
	if err != nil {
		return err
	}
	none := fleet.Refuse(fleet.ErrConflict, "no_conflict", "device", id)
	if d.Claimed == nil {
		return none
	}
	was, claims := map[string]any{"board": d.Board, "chip": d.Chip}, map[string]any{"board": d.Claimed.Board,
		"chip": d.Claimed.Chip}
	detail := map[string]any{"act": "keep_hardware", "pinned": was, "claimed": claims}
	if accept {
		detail["act"] = "accept_hardware"
	}
	return s.audited(ctx, by, "device.resolve_conflict", string(id), detail, func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, `
			UPDATE devices SET
				board = CASE WHEN $2 AND claimed_board <> '' THEN claimed_board ELSE board END,
				board_key = CASE WHEN $2 AND claimed_board <> '' THEN $4 ELSE board_key END,
				board_type = CASE WHEN $2 AND claimed_board_type <> '' THEN claimed_board_type ELSE board_type END,
				chip = CASE WHEN $2 AND claimed_chip <> '' THEN claimed_chip ELSE chip END,
				claimed_board = NULL, claimed_board_type = NULL, claimed_chip = NULL, claimed_at = NULL
			WHERE id = $1 AND claimed_at = $3`, string(id), accept, d.Claimed.At, strings.ToLower(d.Claimed.Board))
		if err == nil && done.RowsAffected() == 0 { // the claim changed meanwhile
			err = none
		}
		return err
	})
}

// conflict returns the conflict in the row, or nil if the device has no conflict.
func (r deviceRow) conflict() *fleet.DeviceConflict {
	if r.ConflictCode == nil {
		return nil
	}
	c := &fleet.DeviceConflict{Code: fleet.ConflictCode(*r.ConflictCode), FirstSeen: *r.ConflictFirst,
		LastSeen: *r.ConflictLast}
	for _, kind := range r.ConflictEvidence {
		c.Evidence = append(c.Evidence, fleet.ConflictEvidence(kind))
	}
	_ = json.Unmarshal(r.ConflictSides, &c.Sides) // fleetd marshalled it
	c.Complete(r.Device)
	return c
}
