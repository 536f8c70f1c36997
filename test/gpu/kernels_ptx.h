// Made from kernels.cu by make_kernels_ptx.sh. Do not edit.
#pragma once

namespace gputest {

// clang-format off
inline constexpr char kKernelsPtx[] = R"ptx(
.version 6.3
.target sm_60
.address_size 64
	// .globl	sim_noop
.visible .entry sim_noop()
{
	ret;
}
	// .globl	sim_fill
.visible .entry sim_fill(
	.param .u64 sim_fill_param_0,
	.param .u64 sim_fill_param_1,
	.param .u64 sim_fill_param_2
)
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<5>;
	.reg .b64 	%rd<23>;
	ld.param.u64 	%rd8, [sim_fill_param_0];
	ld.param.u64 	%rd9, [sim_fill_param_1];
	ld.param.u64 	%rd10, [sim_fill_param_2];
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	cvt.u64.u32 	%rd1, %r2;
	mul.wide.u32 	%rd11, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd12, %r3;
	add.s64 	%rd22, %rd11, %rd12;
	setp.ge.u64 	%p1, %rd22, %rd9;
	@%p1 bra 	$L__BB1_3;
	mul.lo.s64 	%rd3, %rd10, -7046029254386353131;
	mov.u32 	%r4, %nctaid.x;
	cvt.u64.u32 	%rd13, %r4;
	mul.lo.s64 	%rd4, %rd13, %rd1;
	cvta.to.global.u64 	%rd5, %rd8;
$L__BB1_2:
	add.s64 	%rd14, %rd22, %rd3;
	shr.u64 	%rd15, %rd14, 30;
	xor.b64  	%rd16, %rd15, %rd14;
	mul.lo.s64 	%rd17, %rd16, -4658895280553007687;
	shr.u64 	%rd18, %rd17, 27;
	xor.b64  	%rd19, %rd18, %rd17;
	shl.b64 	%rd20, %rd22, 3;
	add.s64 	%rd21, %rd5, %rd20;
	st.global.u64 	[%rd21], %rd19;
	add.s64 	%rd22, %rd22, %rd4;
	setp.lt.u64 	%p2, %rd22, %rd9;
	@%p2 bra 	$L__BB1_2;
$L__BB1_3:
	ret;
}
	// .globl	sim_mix
.visible .entry sim_mix(
	.param .u64 sim_mix_param_0,
	.param .u64 sim_mix_param_1,
	.param .u64 sim_mix_param_2
)
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<5>;
	.reg .b64 	%rd<25>;
	ld.param.u64 	%rd8, [sim_mix_param_0];
	ld.param.u64 	%rd9, [sim_mix_param_1];
	ld.param.u64 	%rd10, [sim_mix_param_2];
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	cvt.u64.u32 	%rd1, %r2;
	mul.wide.u32 	%rd11, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd12, %r3;
	add.s64 	%rd24, %rd11, %rd12;
	setp.ge.u64 	%p1, %rd24, %rd9;
	@%p1 bra 	$L__BB2_3;
	mul.lo.s64 	%rd13, %rd10, -7046029254386353131;
	add.s64 	%rd3, %rd13, -7046029254386353131;
	mov.u32 	%r4, %nctaid.x;
	cvt.u64.u32 	%rd14, %r4;
	mul.lo.s64 	%rd4, %rd14, %rd1;
	cvta.to.global.u64 	%rd5, %rd8;
$L__BB2_2:
	shl.b64 	%rd15, %rd24, 3;
	add.s64 	%rd16, %rd5, %rd15;
	ld.global.u64 	%rd17, [%rd16];
	add.s64 	%rd18, %rd3, %rd17;
	shr.u64 	%rd19, %rd18, 30;
	xor.b64  	%rd20, %rd19, %rd18;
	mul.lo.s64 	%rd21, %rd20, -4658895280553007687;
	shr.u64 	%rd22, %rd21, 27;
	xor.b64  	%rd23, %rd22, %rd21;
	st.global.u64 	[%rd16], %rd23;
	add.s64 	%rd24, %rd24, %rd4;
	setp.lt.u64 	%p2, %rd24, %rd9;
	@%p2 bra 	$L__BB2_2;
$L__BB2_3:
	ret;
}
	// .globl	sim_add
.visible .entry sim_add(
	.param .u64 sim_add_param_0,
	.param .u64 sim_add_param_1,
	.param .u64 sim_add_param_2
)
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<5>;
	.reg .b64 	%rd<21>;
	ld.param.u64 	%rd8, [sim_add_param_0];
	ld.param.u64 	%rd9, [sim_add_param_1];
	ld.param.u64 	%rd10, [sim_add_param_2];
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	cvt.u64.u32 	%rd1, %r2;
	mul.wide.u32 	%rd11, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd12, %r3;
	add.s64 	%rd20, %rd11, %rd12;
	setp.ge.u64 	%p1, %rd20, %rd10;
	@%p1 bra 	$L__BB3_3;
	mov.u32 	%r4, %nctaid.x;
	cvt.u64.u32 	%rd13, %r4;
	mul.lo.s64 	%rd3, %rd13, %rd1;
	cvta.to.global.u64 	%rd4, %rd9;
	cvta.to.global.u64 	%rd5, %rd8;
$L__BB3_2:
	shl.b64 	%rd14, %rd20, 3;
	add.s64 	%rd15, %rd5, %rd14;
	ld.global.u64 	%rd16, [%rd15];
	add.s64 	%rd17, %rd4, %rd14;
	ld.global.u64 	%rd18, [%rd17];
	add.s64 	%rd19, %rd16, %rd18;
	st.global.u64 	[%rd15], %rd19;
	add.s64 	%rd20, %rd20, %rd3;
	setp.lt.u64 	%p2, %rd20, %rd10;
	@%p2 bra 	$L__BB3_2;
$L__BB3_3:
	ret;
}
	// .globl	sim_checksum
.visible .entry sim_checksum(
	.param .u64 sim_checksum_param_0,
	.param .u64 sim_checksum_param_1,
	.param .u64 sim_checksum_param_2
)
{
	.reg .pred 	%p<14>;
	.reg .b32 	%r<35>;
	.reg .b64 	%rd<43>;
	ld.param.u64 	%rd10, [sim_checksum_param_0];
	ld.param.u64 	%rd11, [sim_checksum_param_1];
	ld.param.u64 	%rd12, [sim_checksum_param_2];
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	mul.wide.u32 	%rd14, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd15, %r3;
	add.s64 	%rd40, %rd14, %rd15;
	setp.ge.u64 	%p1, %rd40, %rd11;
	mov.u64 	%rd42, 0;
	@%p1 bra 	$L__BB4_3;
	mov.u32 	%r4, %nctaid.x;
	mul.wide.u32 	%rd2, %r4, %r2;
	cvta.to.global.u64 	%rd3, %rd10;
	mov.u64 	%rd42, 0;
$L__BB4_2:
	mul.lo.s64 	%rd17, %rd40, -7723592293110705685;
	add.s64 	%rd18, %rd17, 1;
	shl.b64 	%rd19, %rd40, 3;
	add.s64 	%rd20, %rd3, %rd19;
	ld.global.u64 	%rd21, [%rd20];
	xor.b64  	%rd22, %rd21, %rd18;
	shr.u64 	%rd23, %rd22, 30;
	xor.b64  	%rd24, %rd23, %rd22;
	mul.lo.s64 	%rd25, %rd24, -4658895280553007687;
	shr.u64 	%rd26, %rd25, 27;
	xor.b64  	%rd27, %rd26, %rd25;
	add.s64 	%rd42, %rd27, %rd42;
	add.s64 	%rd40, %rd40, %rd2;
	setp.lt.u64 	%p2, %rd40, %rd11;
	@%p2 bra 	$L__BB4_2;
$L__BB4_3:
	// begin inline asm
	mov.b64 {%r6,%r7}, %rd42;
	// end inline asm
	mov.u32 	%r26, 2;
	mov.u32 	%r27, 31;
	mov.u32 	%r28, 16;
	mov.u32 	%r29, -1;
	shfl.sync.down.b32 	%r9|%p3, %r7, %r28, %r27, %r29;
	shfl.sync.down.b32 	%r8|%p4, %r6, %r28, %r27, %r29;
	// begin inline asm
	mov.b64 %rd29, {%r8,%r9};
	// end inline asm
	add.s64 	%rd30, %rd29, %rd42;
	// begin inline asm
	mov.b64 {%r10,%r11}, %rd30;
	// end inline asm
	mov.u32 	%r30, 8;
	shfl.sync.down.b32 	%r13|%p5, %r11, %r30, %r27, %r29;
	shfl.sync.down.b32 	%r12|%p6, %r10, %r30, %r27, %r29;
	// begin inline asm
	mov.b64 %rd31, {%r12,%r13};
	// end inline asm
	add.s64 	%rd32, %rd31, %rd30;
	// begin inline asm
	mov.b64 {%r14,%r15}, %rd32;
	// end inline asm
	mov.u32 	%r31, 4;
	shfl.sync.down.b32 	%r17|%p7, %r15, %r31, %r27, %r29;
	shfl.sync.down.b32 	%r16|%p8, %r14, %r31, %r27, %r29;
	// begin inline asm
	mov.b64 %rd33, {%r16,%r17};
	// end inline asm
	add.s64 	%rd34, %rd33, %rd32;
	// begin inline asm
	mov.b64 {%r18,%r19}, %rd34;
	// end inline asm
	shfl.sync.down.b32 	%r21|%p9, %r19, %r26, %r27, %r29;
	shfl.sync.down.b32 	%r20|%p10, %r18, %r26, %r27, %r29;
	// begin inline asm
	mov.b64 %rd35, {%r20,%r21};
	// end inline asm
	add.s64 	%rd36, %rd35, %rd34;
	// begin inline asm
	mov.b64 {%r22,%r23}, %rd36;
	// end inline asm
	mov.u32 	%r32, 1;
	shfl.sync.down.b32 	%r25|%p11, %r23, %r32, %r27, %r29;
	shfl.sync.down.b32 	%r24|%p12, %r22, %r32, %r27, %r29;
	// begin inline asm
	mov.b64 %rd37, {%r24,%r25};
	// end inline asm
	add.s64 	%rd9, %rd37, %rd36;
	and.b32  	%r34, %r3, 31;
	setp.ne.s32 	%p13, %r34, 0;
	@%p13 bra 	$L__BB4_5;
	cvta.to.global.u64 	%rd38, %rd12;
	atom.global.add.u64 	%rd39, [%rd38], %rd9;
$L__BB4_5:
	ret;
}
	// .globl	sim_spin
.visible .entry sim_spin(
	.param .u64 sim_spin_param_0
)
{
	.reg .pred 	%p<2>;
	.reg .b64 	%rd<6>;
	ld.param.u64 	%rd2, [sim_spin_param_0];
	// begin inline asm
	mov.u64 %rd3, %globaltimer;
	// end inline asm
$L__BB5_1:
	// begin inline asm
	mov.u64 %rd4, %globaltimer;
	// end inline asm
	sub.s64 	%rd5, %rd4, %rd3;
	setp.lt.u64 	%p1, %rd5, %rd2;
	@%p1 bra 	$L__BB5_1;
	ret;
}
	// .globl	sim_work
.visible .entry sim_work(
	.param .u64 sim_work_param_0,
	.param .u64 sim_work_param_1
)
{
	.reg .pred 	%p<7>;
	.reg .b32 	%r<4>;
	.reg .b64 	%rd<71>;
	ld.param.u64 	%rd19, [sim_work_param_0];
	ld.param.u64 	%rd20, [sim_work_param_1];
	mov.u32 	%r1, %ctaid.x;
	mov.u32 	%r2, %ntid.x;
	mul.wide.u32 	%rd21, %r1, %r2;
	mov.u32 	%r3, %tid.x;
	cvt.u64.u32 	%rd22, %r3;
	add.s64 	%rd23, %rd22, %rd21;
	add.s64 	%rd70, %rd23, 1;
	setp.eq.s64 	%p1, %rd19, 0;
	@%p1 bra 	$L__BB6_7;
	add.s64 	%rd26, %rd19, -1;
	and.b64  	%rd2, %rd19, 3;
	setp.lt.u64 	%p2, %rd26, 3;
	mov.u64 	%rd65, 0;
	@%p2 bra 	$L__BB6_4;
	sub.s64 	%rd3, %rd2, %rd19;
	mov.u64 	%rd65, 0;
$L__BB6_3:
	add.s64 	%rd28, %rd70, %rd65;
	shr.u64 	%rd29, %rd28, 30;
	xor.b64  	%rd30, %rd29, %rd28;
	mul.lo.s64 	%rd31, %rd30, -4658895280553007687;
	shr.u64 	%rd32, %rd31, 27;
	xor.b64  	%rd33, %rd32, %rd31;
	add.s64 	%rd34, %rd65, %rd33;
	add.s64 	%rd35, %rd34, 1;
	shr.u64 	%rd36, %rd35, 30;
	xor.b64  	%rd37, %rd36, %rd35;
	mul.lo.s64 	%rd38, %rd37, -4658895280553007687;
	shr.u64 	%rd39, %rd38, 27;
	xor.b64  	%rd40, %rd39, %rd38;
	add.s64 	%rd41, %rd65, %rd40;
	add.s64 	%rd42, %rd41, 2;
	shr.u64 	%rd43, %rd42, 30;
	xor.b64  	%rd44, %rd43, %rd42;
	mul.lo.s64 	%rd45, %rd44, -4658895280553007687;
	shr.u64 	%rd46, %rd45, 27;
	xor.b64  	%rd47, %rd46, %rd45;
	add.s64 	%rd48, %rd65, %rd47;
	add.s64 	%rd49, %rd48, 3;
	shr.u64 	%rd50, %rd49, 30;
	xor.b64  	%rd51, %rd50, %rd49;
	mul.lo.s64 	%rd52, %rd51, -4658895280553007687;
	shr.u64 	%rd53, %rd52, 27;
	xor.b64  	%rd70, %rd53, %rd52;
	add.s64 	%rd65, %rd65, 4;
	add.s64 	%rd54, %rd3, %rd65;
	setp.ne.s64 	%p3, %rd54, 0;
	@%p3 bra 	$L__BB6_3;
$L__BB6_4:
	setp.eq.s64 	%p4, %rd2, 0;
	@%p4 bra 	$L__BB6_7;
	neg.s64 	%rd67, %rd2;
$L__BB6_6:
	.pragma "nounroll";
	add.s64 	%rd55, %rd70, %rd65;
	shr.u64 	%rd56, %rd55, 30;
	xor.b64  	%rd57, %rd56, %rd55;
	mul.lo.s64 	%rd58, %rd57, -4658895280553007687;
	shr.u64 	%rd59, %rd58, 27;
	xor.b64  	%rd70, %rd59, %rd58;
	add.s64 	%rd65, %rd65, 1;
	add.s64 	%rd67, %rd67, 1;
	setp.ne.s64 	%p5, %rd67, 0;
	@%p5 bra 	$L__BB6_6;
$L__BB6_7:
	setp.ne.s64 	%p6, %rd70, 81985529216486895;
	@%p6 bra 	$L__BB6_9;
	cvta.to.global.u64 	%rd60, %rd20;
	mov.u64 	%rd61, 81985529216486895;
	st.global.u64 	[%rd60], %rd61;
$L__BB6_9:
	ret;
}
)ptx";
// clang-format on

}  // namespace gputest
