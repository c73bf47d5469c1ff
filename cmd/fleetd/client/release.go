package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type ReleaseCommand struct {
	Create releaseCreate `cmd:"" help:"Create a release from uploaded images."`
	List   releaseList   `cmd:"" help:"List releases."`
	Show   releaseShow   `cmd:"" help:"Show one release and its images."`
	Floor  releaseFloor  `cmd:"" help:"Set, clear or list the minimum versions of boards."`
	Revoke releaseRevoke `cmd:"" help:"Revoke a release: its images are never served again."`
}

func (r Release) row() []string {
	return []string{r.ID, r.Version, r.State, strconv.Itoa(len(r.Images)), r.CreatedAt.Format(time.DateTime)}
}

const releaseHeading = "ID VERSION STATE IMAGES CREATED"

type releaseCreate struct {
	clientFlags
	Images  []string `arg:"" name:"sha256" help:"SHA-256 of each image, one per board or chip."`
	Version string   `help:"Version. Default: the version of the images."`
	Notes   string   `help:"Release notes."`
	Draft   bool     `help:"Keep the release as a draft, which campaigns cannot use."`
}

func (c *releaseCreate) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodPost, "/releases", CreateReleaseInputBody{Images: c.Images,
		Version: &c.Version, Notes: &c.Notes, Draft: &c.Draft})
	return showRelease(&c.clientFlags, answer, err)
}

// showRelease prints one release.
func showRelease(c *clientFlags, answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var r Release
	if err := json.Unmarshal(answer, &r); err != nil {
		return err
	}
	if err := terminal.Table(releaseHeading, [][]string{r.row()}); err != nil {
		return err
	}
	for _, text := range []string{r.Notes, r.Reason} {
		if text != "" {
			fmt.Println(terminal.Printable(text))
		}
	}
	fmt.Println()
	var rows [][]string
	for _, i := range r.Images {
		rows = append(rows, i.row())
	}
	return terminal.Table(imageHeading, rows)
}

type releaseList struct {
	clientFlags
	State string `help:"List only releases in this state." enum:",draft,released,deprecated,revoked" default:""`
	Limit int    `help:"Print at most this many." default:"1000"`
}

func (c *releaseList) Run(ctx context.Context) error {
	params := url.Values{}
	if c.State != "" {
		params.Set("state", c.State)
	}
	items, err := c.all(ctx, "/releases", params, c.Limit)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, releaseHeading, Release.row)
}

type releaseShow struct {
	clientFlags
	ID string `arg:"" help:"Id of the release."`
}

func (c *releaseShow) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/releases/"+url.PathEscape(c.ID), nil)
	return showRelease(&c.clientFlags, answer, err)
}

type releaseRevoke struct {
	clientFlags
	ID     string `arg:"" help:"Id of the release."`
	Reason string `arg:"" help:"Reason."`
}

func (c *releaseRevoke) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodPost, "/releases/"+url.PathEscape(c.ID)+"/revoke",
		RevokeReleaseInputBody{Reason: c.Reason})
	return showRelease(&c.clientFlags, answer, err)
}
