package client

import (
	"context"
	"net/http"

	"fleetd/cmd/fleetd/terminal"
)

// SystemCommand prints the report as JSON, on a terminal too: users attach it to
// requests for help.
type SystemCommand struct{ clientFlags }

func (c *SystemCommand) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/system", nil)
	if err != nil {
		return err
	}
	return terminal.JSON(answer)
}
