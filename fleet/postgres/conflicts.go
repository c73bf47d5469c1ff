package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

var _ enrolment.ConflictStore = (*Store)(nil)

// DeviceConflicts returns the conflicts of devices in service with evidence since
// the given time, the oldest first.
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

// SaveConflicts stores conflicts in place of those before.
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

// cleanSides takes out of what devices say what a text cannot hold.
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

// ResolveConflict removes the conflict and stores the admission that the act
// led to.
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

// conflict is what the row says of two units, nil if nothing.
func (r deviceRow) conflict() *fleet.DeviceConflict {
	if r.ConflictCode == nil {
		return nil
	}
	c := &fleet.DeviceConflict{Code: fleet.ConflictCode(*r.ConflictCode), FirstSeen: *r.ConflictFirst,
		LastSeen: *r.ConflictLast}
	for _, kind := range r.ConflictEvidence {
		c.Evidence = append(c.Evidence, fleet.ConflictEvidence(kind))
	}
	_ = json.Unmarshal(r.ConflictSides, &c.Sides) // as it was marshalled
	c.Complete(r.Device)
	return c
}
