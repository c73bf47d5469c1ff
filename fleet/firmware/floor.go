package firmware

import (
	"context"
	"slices"
	"time"

	"fleetd/fleet"
)

// A Floor is the minimum version that devices with a board may get: older versions are
// withheld, also from a rollback and from a link that was already sent.
type Floor struct {
	Board   string
	Version string
	SetBy   fleet.Principal
	SetAt   time.Time
}

// FloorStore stores the floors.
type FloorStore interface {
	Floors(ctx context.Context) ([]Floor, error) // by board
	// PutFloor sets the floor of a board and replaces an existing one.
	PutFloor(ctx context.Context, by fleet.Principal, f Floor) error
	// DeleteFloor removes the floor of a board; [fleet.ErrNotFound] if it has no floor.
	DeleteFloor(ctx context.Context, by fleet.Principal, board string) error
}

// Floors lists the floors by board.
func (f *Service) Floors(ctx context.Context) ([]Floor, error) {
	if f.o.Floors == nil {
		return nil, nil
	}
	return f.o.Floors.Floors(ctx)
}

// SetFloor sets the minimum version that devices with a board may get.
func (f *Service) SetFloor(ctx context.Context, by fleet.Principal, board, version string) (Floor, error) {
	if err := f.maySetFloor(by); err != nil {
		return Floor{}, err
	}
	board, err := cleanBoard(board)
	if err != nil {
		return Floor{}, err
	}
	if board == "" {
		return Floor{}, fleet.Refuse(fleet.ErrInvalid, "floor_board").At("board")
	}
	version, err = fleet.CleanLine("version", version, maxFloorVersion)
	if err != nil {
		return Floor{}, err
	}
	if fleet.VersionKey(version) == nil {
		return Floor{}, fleet.Refuse(fleet.ErrInvalid, "floor_version", "value", version).At("version")
	}
	floor := Floor{Board: board, Version: version, SetBy: by, SetAt: f.o.Now()}
	if err := f.o.Floors.PutFloor(ctx, by, floor); err != nil {
		return Floor{}, err
	}
	f.o.Log.Warn("least version of a board set", "board", board, "version", version, "operator", by.Name)
	f.floorsChanged(board)
	return floor, nil
}

// maxFloorVersion is the maximum length of an image's version.
const maxFloorVersion = 32

// ClearFloor removes the minimum version of a board.
func (f *Service) ClearFloor(ctx context.Context, by fleet.Principal, board string) error {
	if err := f.maySetFloor(by); err != nil {
		return err
	}
	if err := f.o.Floors.DeleteFloor(ctx, by, board); err != nil {
		return err
	}
	f.o.Log.Warn("least version of a board cleared", "board", board, "operator", by.Name)
	f.floorsChanged(board)
	return nil
}

// maySetFloor requires an admin, not a model: a floor decides what a whole board may run, and
// clearing it allows versions with known vulnerabilities.
func (f *Service) maySetFloor(by fleet.Principal) error {
	if err := by.May(fleet.RoleAdmin, "set_floor"); err != nil {
		return err
	}
	if by.Kind.IsModel() {
		return fleet.Refuse(fleet.ErrForbidden, "person_needed", "actor", by.Name)
	}
	if f.o.Floors == nil {
		return fleet.Refuse(fleet.ErrUnavailable, "no_floors")
	}
	return nil
}

func (f *Service) floorsChanged(board string) {
	f.checker.forgetFloors()
	f.announce(board) // running campaigns check their images again
}

func (c *Checker) forgetFloors() {
	c.floorsMu.Lock()
	defer c.floorsMu.Unlock()
	c.floorsAt = time.Time{}
}

// leastVersions returns the floors, at most [floorsFresh] old.
func (c *Checker) leastVersions(ctx context.Context) (map[string]string, error) {
	if c.o.Floors == nil {
		return nil, nil
	}
	c.floorsMu.Lock()
	defer c.floorsMu.Unlock()
	now := c.o.Now()
	if age := now.Sub(c.floorsAt); age >= 0 && age < floorsFresh {
		return c.floors, nil
	}
	all, err := c.o.Floors.Floors(ctx)
	if err != nil {
		return nil, err
	}
	floors := make(map[string]string, len(all))
	for _, f := range all {
		floors[f.Board] = f.Version
	}
	c.floors, c.floorsAt = floors, now
	return floors, nil
}

// belowFloor returns why a board may not get a version. A version without numbers cannot be
// compared with the floor.
func (l Limits) belowFloor(board, version string) fleet.Reason {
	least := l.Floors[board]
	if board == "" || least == "" {
		return fleet.Reason{}
	}
	key := fleet.VersionKey(version)
	switch {
	case key == nil:
		return fleet.Because("below_floor.incomparable", "board", board, "version", version,
			"least", least)
	case slices.Compare(key, fleet.VersionKey(least)) < 0:
		return fleet.Because("below_floor.older", "board", board, "version", version, "least", least)
	}
	return fleet.Reason{}
}
