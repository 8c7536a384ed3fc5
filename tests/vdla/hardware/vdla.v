// A register-transfer model of the accelerator: three units that run the instructions of `burnish/machines/vdla/isa.py`
// side by side, one entry, product or vector a cycle, and count tokens for each other. `fields.vh` is written from the
// table of formats and the configuration. Reads code.hex and dram.hex, writes result.hex and prints its cycles.
`include "fields.vh"

module vdla;
  reg clk = 0;
  always #1 clk = ~clk;

  reg [127:0] code [0:`CODE-1];
  reg [7:0] dram [0:`DRAM-1];
  reg [31:0] uop [0:`UOP-1];
  reg [8*`BLOCK-1:0] inp [0:`INP-1];
  reg [8*`BLOCK*`BLOCK-1:0] wgt [0:`WGT-1];
  reg [32*`BLOCK-1:0] acc [0:`ACC-1];

  // Of each unit (0 load, 1 compute, 2 store): its next instruction, whether it runs one, cycles to wait, entries done,
  // bytes that the DRAM has moved for the next entry.
  integer pc [0:2];
  reg running [0:2];
  integer left [0:2];
  integer done [0:2];
  integer credit [0:2];
  integer tokens [0:3];  // load > compute, compute > load, compute > store, store > compute
  integer owner;         // the unit that the DRAM moves data for; 3: none
  integer cycles, u, i, k;
  integer cost, y, x, n, from, dst, src, w;
  reg [127:0] now;
  reg [31:0] word;
  reg signed [31:0] a, b;
  reg ready, whole;

  function integer unit_of(input [127:0] c);
    case (`OPCODE(c))
      `LOAD: unit_of = (`LOAD_memory(c) == 1 || `LOAD_memory(c) == 2) ? 0 : 1;
      `STORE: unit_of = 2;
      `SYNC: unit_of = `SYNC_unit(c);
      default: unit_of = 1;
    endcase
  endfunction

  function integer entry_bytes(input integer memory);
    case (memory)
      0: entry_bytes = 4;
      1: entry_bytes = `BLOCK * `BLOCK;
      3: entry_bytes = 4 * `BLOCK;
      default: entry_bytes = `BLOCK;
    endcase
  endfunction

  // The queue from a unit to its neighbour in front (previous) or behind.
  function integer queue(input integer unit, input previous, input gives);
    queue = 2 * (previous ? unit - 1 : unit) + ((gives != previous) ? 0 : 1);
  endfunction

  task start;  // takes the tokens of an instruction when they are there
    begin
      while (pc[u] < `CODE && unit_of(code[pc[u]]) != u) pc[u] = pc[u] + 1;
      if (pc[u] < `CODE) begin
        now = code[pc[u]];
        ready = 1;
        if (`POP_PREV(now) && tokens[queue(u, 1, 0)] == 0) ready = 0;
        if (`POP_NEXT(now) && tokens[queue(u, 0, 0)] == 0) ready = 0;
        if (ready) begin
          if (`POP_PREV(now)) tokens[queue(u, 1, 0)] = tokens[queue(u, 1, 0)] - 1;
          if (`POP_NEXT(now)) tokens[queue(u, 0, 0)] = tokens[queue(u, 0, 0)] - 1;
          running[u] = 1;
          done[u] = 0;
          credit[u] = 0;
          left[u] = `OPCODE(now) == `SYNC ? 0 : `OPCODE(now) <= `STORE ? `LATENCY : `PIPELINE;
        end
      end
    end
  endtask

  task finish;  // gives the tokens
    begin
      if (`PUSH_PREV(now)) tokens[queue(u, 1, 1)] = tokens[queue(u, 1, 1)] + 1;
      if (`PUSH_NEXT(now)) tokens[queue(u, 0, 1)] = tokens[queue(u, 0, 1)] + 1;
      running[u] = 0;
      pc[u] = pc[u] + 1;
      if (owner == u) owner = 3;
    end
  endtask

  task read_entry(input integer memory, input integer entry, input integer at, input valid);
    case (memory)
      0: for (i = 0; i < 4; i = i + 1) uop[entry][8*i +: 8] = valid ? dram[at + i] : 8'd0;
      1: for (i = 0; i < `BLOCK * `BLOCK; i = i + 1) wgt[entry][8*i +: 8] = valid ? dram[at + i] : 8'd0;
      2: for (i = 0; i < `BLOCK; i = i + 1) inp[entry][8*i +: 8] = valid ? dram[at + i] : 8'd0;
      3: for (i = 0; i < 4 * `BLOCK; i = i + 1) acc[entry][8*i +: 8] = valid ? dram[at + i] : 8'd0;
      default: for (i = 0; i < `BLOCK; i = i + 1)
        acc[entry][32*i +: 32] = valid ? {{24{dram[at + i][7]}}, dram[at + i]} : 32'd0;
    endcase
  endtask

  task transfer;  // one cycle of the DRAM: the entries whose bytes have come
    begin
      if (owner == 3) owner = u;
      if (owner == u) begin
        n = (`LOAD_left(now) + `LOAD_columns(now) + `LOAD_right(now));
        from = (`LOAD_top(now) + `LOAD_rows(now) + `LOAD_bottom(now));
        credit[u] = credit[u] + `RATE;
        whole = 1;
        while (whole && done[u] < n * from) begin
          y = done[u] / n - `LOAD_top(now);
          x = done[u] % n - `LOAD_left(now);
          ready = y >= 0 && y < `LOAD_rows(now) && x >= 0 && x < `LOAD_columns(now);
          k = entry_bytes(`LOAD_memory(now));
          // a row that does not go on in DRAM ends with a whole burst
          cost = k;
          if (x == `LOAD_columns(now) - 1 && `LOAD_stride(now) != `LOAD_columns(now))
            cost = k + (`BURST - `LOAD_columns(now) * k % `BURST) % `BURST;
          if (ready && credit[u] < cost) whole = 0;
          else begin
            if (ready) credit[u] = credit[u] - cost;
            dst = `LOAD_dram(now) + (y * `LOAD_stride(now) + x) * k;
            if (`OPCODE(now) == `LOAD) read_entry(`LOAD_memory(now), `LOAD_sram(now) + done[u], dst, ready);
            else for (i = 0; i < k; i = i + 1)
              dram[dst + i] = `LOAD_memory(now) == 3 ? acc[`LOAD_sram(now) + done[u]][8*i +: 8]
                                                     : acc[`LOAD_sram(now) + done[u]][32*i +: 8];
            done[u] = done[u] + 1;
          end
        end
        if (done[u] == n * from) finish;
      end
    end
  endtask

  task addresses(input integer begins, input integer ends, input integer inner, input integer do_, input integer di,
                 input integer so, input integer si, input integer wo, input integer wi);
    begin  // the micro-operation is the innermost loop
      word = uop[begins + done[1] % (ends - begins)];
      x = done[1] / (ends - begins) % inner;
      y = done[1] / (ends - begins) / inner;
      dst = word[`DST_BITS-1:0] + y * do_ + x * di;
      src = word[`DST_BITS +: `SRC_BITS] + y * so + x * si;
      w = word[`DST_BITS + `SRC_BITS +: `WGT_BITS] + y * wo + x * wi;
    end
  endtask

  task multiply;
    begin
      addresses(`GEMM_uop_begin(now), `GEMM_uop_end(now), `GEMM_inner(now), `GEMM_dst_outer(now), `GEMM_dst_inner(now),
                `GEMM_src_outer(now), `GEMM_src_inner(now), `GEMM_wgt_outer(now), `GEMM_wgt_inner(now));
      for (i = 0; i < `BLOCK; i = i + 1) begin
        a = `GEMM_reset(now) ? 0 : acc[dst][32*i +: 32];
        if (!`GEMM_reset(now)) for (k = 0; k < `BLOCK; k = k + 1)
          a = a + $signed(wgt[w][8*(`BLOCK*i + k) +: 8]) * $signed(inp[src][8*k +: 8]);
        acc[dst][32*i +: 32] = a;
      end
      done[1] = done[1] + 1;
      if (done[1] == (`GEMM_uop_end(now) - `GEMM_uop_begin(now)) * `GEMM_outer(now) * `GEMM_inner(now)) finish;
    end
  endtask

  task combine;
    begin
      addresses(`ALU_uop_begin(now), `ALU_uop_end(now), `ALU_inner(now), `ALU_dst_outer(now), `ALU_dst_inner(now),
                `ALU_src_outer(now), `ALU_src_inner(now), 0, 0);
      for (i = 0; i < `BLOCK; i = i + 1) begin
        a = acc[dst][32*i +: 32];
        b = `ALU_immediate(now) ? `ALU_value(now) : acc[src][32*i +: 32];
        case (`ALU_op(now))
          0: a = $signed(a) < $signed(b) ? a : b;
          1: a = $signed(a) > $signed(b) ? a : b;
          2: a = a + b;
          default: a = $signed(a) >>> (b > 31 ? 31 : b);
        endcase
        acc[dst][32*i +: 32] = a;
      end
      done[1] = done[1] + 1;
      if (done[1] == (`ALU_uop_end(now) - `ALU_uop_begin(now)) * `ALU_outer(now) * `ALU_inner(now)) finish;
    end
  endtask

  initial begin
    $readmemh("code.hex", code);
    $readmemh("dram.hex", dram);
    for (u = 0; u < 3; u = u + 1) begin
      pc[u] = 0;
      running[u] = 0;
    end
    for (u = 0; u < 4; u = u + 1) tokens[u] = 0;
    owner = 3;
    cycles = 0;
  end

  always @(posedge clk) begin
    for (u = 0; u < 3; u = u + 1) begin
      if (!running[u]) start;
      if (running[u]) begin
        now = code[pc[u]];
        if (left[u] > 0) left[u] = left[u] - 1;
        else case (`OPCODE(now))
          `GEMM: multiply;
          `ALU: combine;
          `SYNC: finish;
          default: transfer;
        endcase
      end
    end
    cycles = cycles + 1;
    if (pc[0] >= `CODE && pc[1] >= `CODE && pc[2] >= `CODE) begin
      $writememh("result.hex", dram);
      $display("cycles %0d", cycles);
      $finish;
    end
    if (cycles == `LIMIT) begin
      $display("deadlock at %0d %0d %0d", pc[0], pc[1], pc[2]);
      $finish;
    end
  end
endmodule
