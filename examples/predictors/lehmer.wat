;; Blocks in the order of a Lehmer generator, as a loader shuffles records without a list of them:
;; behind block x follows 71 x mod 251. Expects the next 16.
;;
;;     wat2wasm lehmer.wat
(module
  (import "forebay" "expect" (func $expect (param $block i64) (param $count i64)))
  (func (export "forebay_read")
    (param $reader i32) (param $block i64) (param $blocks i64) (param $hit i32)
    (local $left i32)
    ;; The order has the blocks 1 to 250.
    (if (i32.or (i64.lt_u (local.get $blocks) (i64.const 251))
                (i64.ge_u (local.get $block) (i64.const 251)))
      (then (return)))
    (local.set $left (i32.const 16))
    (loop $next
      (local.set $block
        (i64.rem_u (i64.mul (local.get $block) (i64.const 71)) (i64.const 251)))
      (call $expect (local.get $block) (i64.const 1))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $next (local.get $left)))))
