package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type releaseFloor struct {
	clientFlags
	Board   string `arg:"" optional:"" help:"Name of the board, as in boot polls. Without one, list the boards that have a minimum version."`
	Version string `arg:"" optional:"" help:"Minimum version: numbers separated by dots."`
	Clear   bool   `help:"Remove the minimum version of the board."`
}

const floorHeading = "BOARD VERSION BY SET"

func (f Floor) row() []string {
	return []string{f.Board, f.Version, f.SetBy.Name, f.SetAt.Format(time.DateTime)}
}

func (c *releaseFloor) Run(ctx context.Context) error {
	path := "/floors/" + url.PathEscape(c.Board)
	switch {
	case c.Board == "" && c.Clear, c.Version != "" && c.Clear:
		return errors.New("name the board whose minimum version to clear, without a version")
	case c.Clear:
		_, err := c.do(ctx, http.MethodDelete, path, nil)
		return err
	case c.Version != "":
		answer, err := c.do(ctx, http.MethodPut, path, SetFloorInputBody{Version: c.Version})
		if err != nil || !c.human() {
			return errors.Join(err, jsonUnless(err, answer))
		}
	}
	items, err := c.all(ctx, "/floors", nil, 1000)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, floorHeading, Floor.row)
}

func jsonUnless(err error, answer []byte) error {
	if err != nil {
		return nil
	}
	return terminal.JSON(answer)
}
