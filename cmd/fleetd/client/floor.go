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
	Board   string `arg:"" optional:"" help:"Board, as its boot polls name it. Without one, list the boards that have a least version."`
	Version string `arg:"" optional:"" help:"Least version: numbers with dots between them."`
	Clear   bool   `help:"Let the board have any version again."`
}

const floorHeading = "BOARD VERSION BY SET"

func (f Floor) row() []string {
	return []string{f.Board, f.Version, f.SetBy.Name, f.SetAt.Format(time.DateTime)}
}

func (c *releaseFloor) Run(ctx context.Context) error {
	path := "/floors/" + url.PathEscape(c.Board)
	switch {
	case c.Board == "" && c.Clear, c.Version != "" && c.Clear:
		return errors.New("name the board whose least version to clear, and no version")
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
