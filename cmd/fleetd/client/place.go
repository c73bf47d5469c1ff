package client

import (
	"context"
	"net/url"
	"strconv"
)

type PlaceCommand struct {
	List placeList `cmd:"" help:"List all places, or one and those within it, with figures of their devices."`
}

type placeList struct {
	clientFlags
	Path string `arg:"" optional:"" help:"A place, such as site-1/room-2: list it and those within it."`
}

const placeHeading = "PATH DEVICES JOINED ONLINE CRASHED VERSION ON-VERSION VERSIONS ALERTS CAMPAIGNS"

func (p PlaceFigures) row() []string {
	row := []string{p.Path}
	for _, n := range []int64{p.Devices, p.Joined, p.Online, p.Crashed} {
		row = append(row, strconv.FormatInt(n, 10))
	}
	return append(row, p.Version, strconv.FormatInt(p.OnVersion, 10), strconv.FormatInt(p.Versions, 10),
		strconv.Itoa(len(p.Alerts)), strconv.Itoa(len(p.Campaigns)))
}

func (c *placeList) Run(ctx context.Context) error {
	params := url.Values{}
	if c.Path != "" {
		params.Set("within", c.Path)
	}
	return ask(ctx, &c.clientFlags, "/places", params, func(Places) string { return placeHeading }, Places.rows)
}

func (v Places) rows() (rows [][]string) {
	for _, p := range v.Items {
		rows = append(rows, p.row())
	}
	if v.More {
		rows = append(rows, []string{"(more: name a place to list those within it)"})
	}
	return rows
}
